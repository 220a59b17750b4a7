"""Tools that call HTTP APIs, described by OpenAPI documents or by the project's files.

In reading order; each module imports only from those below it:

    source      The tools of an API or an HTTP tool: built from their description, and called.
    encoding    Encodes the arguments of a call as path, query and body of its request.
    operations  Reads the operations of an OpenAPI document: the arguments of each, and how they are sent.
    schemas     Copies schemas of a document as JSON Schema, with the definitions that they refer to.
    document    Reads OpenAPI documents: data with line numbers, and references.
"""
