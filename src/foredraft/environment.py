"""What has to be set before torch is loaded.

torch's own threads would wait for the next product in a loop that keeps a core busy. Beside the threads of the native
executor, or any busy process, each of its small products then waits for the scheduler: on two cores with a neighbour a
head that runs in torch took 2 to 8 times as long. Where torch is loaded first, the variable has to be set by hand.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
