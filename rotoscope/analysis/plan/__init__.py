"""Plans: from what heads do to decisions that engineers make. Each is measured beside other ways to decide.

`cache`: which key heads keep all their keys and values. `rotation`: which planes go on rotating.
"""

from rotoscope.analysis.plan.cache_plan import cache as cache
from rotoscope.analysis.plan.exports import StreamingPlan as StreamingPlan
from rotoscope.analysis.plan.exports import load_cache as load_cache
from rotoscope.analysis.plan.exports import save_duo_attention as save_duo_attention
from rotoscope.analysis.plan.exports import stream as stream
from rotoscope.analysis.plan.planes_file import RotatingPlanes as RotatingPlanes
from rotoscope.analysis.plan.planes_file import load_rotation as load_rotation
from rotoscope.analysis.plan.planes_file import stop_planes as stop_planes
from rotoscope.analysis.plan.rotation_plan import rotation as rotation
