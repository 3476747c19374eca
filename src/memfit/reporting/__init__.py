"""What people see: progress, tables, pages. The objects hold the data, this room shows it."""
