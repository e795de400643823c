"""The settings with which Spark opens a lake in an object store.

Source: Hadoop's documentation, "Hadoop-AWS module: Integration with Amazon Web Services"; Delta
Lake's documentation, "Storage configuration".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cdc_core.errors import ConfigurationError
from cdc_core.lake_storage.object_store import ObjectStore
from cdc_core.lake_storage.store_credentials import find_credentials, name_variables
from spark_jobs.session.store_jar import COMMIT_PROTOCOL, LOG_STORE, locate_store_jar

_S3A = "spark.hadoop.fs.s3a"
_LOG_STORE = "spark.delta.logStore.s3.impl"
_COMMIT_PROTOCOL = "spark.sql.sources.commitProtocolClass"
# The settings that name Walgate's classes. No other class may take their place.
REQUIRED_CLASSES = (_LOG_STORE, _COMMIT_PROTOCOL)


@dataclass(frozen=True, slots=True)
class StoreJars:
    """An object store, and the folder of the JARs with which Spark reaches it."""

    store: ObjectStore
    folder: Path

    def list_jars(self) -> list[Path]:
        """List the JARs. Raises: ConfigurationError if one that Walgate needs is missing."""
        jars = sorted(self.folder.glob("*.jar"))
        own = locate_store_jar(self.folder)
        if own not in jars or not any("hadoop-aws" in jar.name for jar in jars):
            raise ConfigurationError(
                [f"{self.folder} lacks {own.name}, or the JARs of hadoop-aws"],
                fix="run `make setup-s3`",
            )
        return jars


def configure_store(store: ObjectStore) -> dict[str, str]:
    """Give Spark the options of a store, the credentials of this host, and Walgate's classes.

    Spark redacts the values of credentials, and `open_session` keeps them off the command line.
    Without credentials, Hadoop asks its own providers. Raises: OSError.
    """
    options = dict(store.options)
    is_encrypted = not options.get("aws_endpoint", "").startswith("http://")
    is_virtual = options.get("aws_virtual_hosted_style_request") == "true"
    conf = {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        _LOG_STORE: LOG_STORE,
        _COMMIT_PROTOCOL: COMMIT_PROTOCOL,
        f"{_S3A}.connection.ssl.enabled": str(is_encrypted).lower(),
        f"{_S3A}.path.style.access": str(not is_virtual).lower(),
        f"{_S3A}.endpoint.region": options["aws_region"],
        # By default, Hadoop buffers rows in files in /tmp, which others can read, and which stay
        # if the process is killed. In memory, each open file takes one to five of these parts.
        f"{_S3A}.fast.upload.buffer": "bytebuffer",
        f"{_S3A}.fast.upload.active.blocks": "4",
        f"{_S3A}.multipart.size": "16M",
    }
    if "aws_endpoint" in options:
        conf[f"{_S3A}.endpoint"] = options["aws_endpoint"]
    credentials = find_credentials(os.environ)
    for name, value in name_variables(credentials).items():
        # The tasks of a cluster that run Walgate's code reach the store by other libraries.
        conf[f"spark.executorEnv.{name}"] = value
    if credentials is not None:
        conf[f"{_S3A}.access.key"] = credentials.key_id
        conf[f"{_S3A}.secret.key"] = credentials.secret
        if credentials.token:
            conf[f"{_S3A}.session.token"] = credentials.token
            conf[f"{_S3A}.aws.credentials.provider"] = (
                "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
            )
    return conf
