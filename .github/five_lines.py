"""A profile of a model that comes with the wheel: what an installation does without any download."""

import rotoscope as rs

subject = rs.load("number")
prompts = rs.tasks.number(count=16)
profile = rs.profile(subject, prompts)
print(profile.top("symbolic")[["layer", "head", "symbolic_score", "head_class"]])
profile.save("runs/number")

assert profile.accuracy == 1.0, profile.accuracy
assert (profile.head("10:0").head_class, profile.head("2:0").head_class) == ("symbolic", "positional")
assert rs.open("runs/number").heads.equals(profile.heads)
