"""The same questions asked while somebody else's training runs: heads are watched as they become what they are."""

from rotoscope.monitor.head_monitor import HeadMonitor as HeadMonitor
from rotoscope.monitor.head_monitor import Schedule as Schedule
from rotoscope.monitor.steering_penalty import Favour as Favour
