"""TO WRITE.

In reading order; each module imports only from those below it:

    parse        A file's data as a typed model, or every Problem with it at once: place, caret, and the name that ...
    environment  `${VAR}` and `${VAR:-default}` in parsed files: put in as text, after parsing, so a value can ...
    fixes        Mistakes that can only mean one thing, and what is to be written instead: everything else in a ...
    partial      Reads the valid parts of data that is invalid as a whole.
    document     YAML text as plain data in which every key and value knows its line and column.
"""
