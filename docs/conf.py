"""The settings of Sphinx: `tox -e docs` builds the site."""

import re
from importlib.metadata import metadata

_ABOUT = metadata("pytest-dataloader-faults")
project = _ABOUT["Name"]
author = _ABOUT["Author"]
release = _ABOUT["Version"]
project_copyright = f"%Y, {author}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # Links of pages name headings as code hosts do.

html_theme = "furo"
html_title = project
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_type_aliases = {"DatasetFactory": "pytest_dataloader_faults.DatasetFactory"}
napoleon_use_ivar = True
python_use_unqualified_type_names = True

# A site that cannot be reached is replaced by an inventory without entries, so that a build
# without network has fewer links and no warnings.
intersphinx_timeout = 5
intersphinx_mapping = {
    name: (address, (None, "no-network.inv"))
    for name, address in {
        "python": "https://docs.python.org/3",
        "pytest": "https://docs.pytest.org/en/stable",
        "torch": "https://docs.pytorch.org/docs/stable",
        "hypothesis": "https://hypothesis.readthedocs.io/en/latest",
    }.items()
}

# Names of types that lead nowhere: of sites that were not reached, and of this package's own code.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|contextlib|hypothesis|os|pathlib|pyfakefs|st|torch)\..*"),
    ("py:class", r"Files|Kinds|pytest_dataloader_faults\._trial\.factory\.PartOf"),
    ("py:class", r"pytest_dataloader_faults\..*\.(OwnFolders|JudgedTrial|Note|NoteT)"),
]


def _add_toctrees(_app, page, source):
    """Give the sidebar the lists of index.md, which is read in the repository, too.

    A list has the title of its section, or that of the group within it.
    """
    if page != "index":
        return
    for section in re.split(r"\n##+ ", source[0])[1:]:
        caption, _, text = section.partition("\n")
        pages = re.findall(r"\]\(([^)]+)\.md\)", text)
        tree = [
            "```{toctree}",
            f":caption: {caption.partition(':')[0]}",
            ":hidden:",
            "",
            *pages,
            "```",
        ]
        source[0] += "\n".join(["", *tree, ""]) if pages else ""


def setup(app):
    app.connect("source-read", _add_toctrees)
