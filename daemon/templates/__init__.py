"""Which templates are there for jobs to name?

The operator's own files, in one folder (`templates.dir`), all read and compiled at start and again on SIGHUP:

    invite.subject.txt   needed: one line
    invite.txt           the plain text; without it one is made of the HTML
    invite.html          the HTML; values are escaped, a <style> is written into the elements
    _layout.html         a part: begins with _, can be included or extended by the others, can't be named by a job

    library     the set that holds now, and how another takes its place: all of it or nothing
    reading     files -> sources; nothing outside the folder
    inlining    CSS into elements, once, around the Jinja in between
    rendering   sources -> templates: Jinja2, strict and in a sandbox

Promises: a file that a job could fail on for its own fault stops the start, with its name and line. A job names a template by a
name in a table: no name of a job's becomes a path. Templates are code of the operator and may loop as long as they like; what a
row can do is bounded: `range` by 100,000, and a part by the largest size of a message.
"""

from __future__ import annotations

from daemon.templates.library import Library, load

__all__ = ["Library", "load"]
