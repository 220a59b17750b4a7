"""Tools that call HTTP APIs, described by OpenAPI documents or by the project's files.

In reading order; each module imports only from those below it:

    source      The tools of an API or an HTTP tool: built from their description, and called.
    operations  The operations of an OpenAPI document: the arguments of each, and their calls as requests.
    swagger     Operations of Swagger 2.0 documents, as those of OpenAPI 3.
    document    Reads OpenAPI documents: data with line numbers, references, and schemas.
"""
