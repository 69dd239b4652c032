"""Settings of the documentation site: `sphinx-build -W docs docs/_build/html` builds it (extra `docs`)."""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import notebook_cache

from excb.version import __version__

# What notebooks compute does not come from the builder's cache, and leaves nothing there.
os.environ["EXCB_CACHE"] = tempfile.mkdtemp(prefix="excb-docs-")

project = "excb"
author = "The ExCB maintainers"
copyright = author
version = release = __version__

extensions = [
    "myst_nb",  # Markdown as well as notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "from_code",  # beside this file, as the next two
    "line_breaks",
    "records",
]
exclude_patterns = ["_build"]
html_show_sourcelink = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # links to headings, as GitHub has them

# Notebooks are kept without outputs and run when the site is built; one that fails, fails the build. Outputs are reused
# while all that made them is the same. `-D nb_execution_mode=force` runs every notebook.
nb_execution_mode = "cache"
nb_execution_cache_path = str(notebook_cache.folder())
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300  # seconds for a cell; a whole notebook takes some 20 on an idle core
nb_merge_streams = True

default_role = "code"  # docstrings have names in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
nitpicky = True  # a reference to nothing fails the build
nitpick_ignore_regex = [
    # Of other projects: their pages are not asked, as the site is built without a network.
    ("py:class", r"(collections|pathlib|os|numpy|np|pandas|torch|nn|PIL)\..*|Path|Tensor"),
    # Of ours, in signatures of what is documented; their own pages would say no more.
    ("py:class", r"Picture|ResultRecord|PerImage|Paired|Output|Leaderboard|Images|Teachers|Verdict|Labels|Values"),
    (
        "py:class",
        r"NearDuplicates|ClusterMethod|ProjectionMethod|EmbeddingClusters|MapResult",
    ),
    (
        "py:class",
        r"excb\.(pretrain\.(recipe\.Recipe|run\.gain\.Gain)|settings\.MethodSettings|method\.(Step|Clustered|Distilled))",
    ),
    ("py:class", r"excb\.neighbours\.approximate\.ApproximateIndex"),
]
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"excb {__version__}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"  # from_code.py: browsers draw it themselves, without a network
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True
