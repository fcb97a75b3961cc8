"""The file systems below a mount: HDFS and a local directory."""
