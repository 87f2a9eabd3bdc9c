"""What every process must agree on: identifiers, errors, settings, names, how Ray is started.

Agreements, no behaviour: nothing here opens a table or answers a request.
"""
