"""Sphinx settings: offline, strict. MathJax is copied from a package when the pages are built."""

project = "rotoscope"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "rotoscope"
html_static_path = ["_static"]
html_css_files = ["rotoscope.css"]
html_js_files = ["enlarge.js"]
html_show_copyright = False
exclude_patterns = ["_build"]
smartquotes_action = "qe"  # options keep their two dashes
default_role = "code"  # docstrings write names between single backticks
autodoc_typehints = "none"
autodoc_member_order = "bysource"
