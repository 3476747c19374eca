"""Python runs this at its start, in processes of tests that ask for it: see `prepared.forking_environment`."""

import prepared

prepared.install()
