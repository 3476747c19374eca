// Shows what is under the pointer. Texts are put in as text, never as HTML.
(() => {
  const tip = document.createElement("div");
  tip.className = "mf-tooltip";
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);

  const show = (text, event) => {
    tip.textContent = text;
    tip.style.display = "block";
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 6);
    const above = event.clientY + 18 + box.height > innerHeight;
    tip.style.left = Math.max(6, left) + "px";
    tip.style.top = (above ? Math.max(6, event.clientY - box.height - 10) : event.clientY + 18) + "px";
  };
  const hide = () => { tip.style.display = "none"; };

  for (const each of document.querySelectorAll(".mf-tip[title]")) {
    const text = each.title;
    each.removeAttribute("title");
    each.setAttribute("aria-label", text);
    each.addEventListener("pointermove", (event) => { show(text, event); event.stopPropagation(); });
    each.addEventListener("pointerleave", hide);
  }

  // A plot with a cursor: `x` are places from 0 to 1 in order, `tips` the text of each.
  for (const area of document.querySelectorAll(".mf-area[data-hover]")) {
    const { x, tips } = JSON.parse(document.getElementById(area.dataset.hover).textContent);
    if (!x.length) continue;
    const cursor = document.createElement("div");
    cursor.className = "mf-cursor";
    area.append(cursor);
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width;
      let nearest = 0;
      for (let i = 1; i < x.length; i++) if (Math.abs(x[i] - at) < Math.abs(x[nearest] - at)) nearest = i;
      cursor.style.left = 100 * x[nearest] + "%";
      cursor.style.display = "block";
      show(tips[nearest], event);
    });
    area.addEventListener("pointerleave", () => { cursor.style.display = "none"; hide(); });
  }
})();
