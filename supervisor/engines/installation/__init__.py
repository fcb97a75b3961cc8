"""The agents' installation as a file: packed here, and unpacked on the machines that an engine gives."""
