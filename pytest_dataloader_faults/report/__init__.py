"""The results of the checks of a pytest run, for people and for other programs."""

# One model, and a module for each form that it takes: the terminal, an HTML page, Markdown, JSON,
# annotations of GitHub. All of them are pure: the plugin prints and writes.
