"""A client of Dagster's page: reads whether our code is loaded, its assets, and loads it again."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

import dagster as dg

from cdc_core import errors

HOST = "127.0.0.1"
_TIMEOUT_S = 10.0
# A new process imports all our code, on a machine that may be busy.
_RELOAD_TIMEOUT_S = 300.0
# Dagster's error while the code server starts or restarts.
_UNREACHABLE = "DagsterUserCodeUnreachableError"
_LOCATION_FIELDS = """
    name
    loadStatus
    locationOrLoadError {
      __typename
      ... on PythonError { className message errorChain { error { className message } } }
    }
"""
_READ_LOCATIONS = (
    f"{{ workspaceOrError {{ ... on Workspace {{ locationEntries {{ {_LOCATION_FIELDS} }} }} }} }}"
)
_RELOAD = f"""
mutation($name: String!) {{
  reloadRepositoryLocation(repositoryLocationName: $name) {{
    __typename
    ... on WorkspaceLocationEntry {{ {_LOCATION_FIELDS} }}
  }}
}}
"""
_READ_ASSETS = "{ assetNodes { assetKey { path } } }"


@dataclass(frozen=True, slots=True)
class Location:
    """Whether our code is loaded; if it failed to load, why."""

    is_loaded: bool
    problem: str | None = None


class Page:
    """The page at a port of this host."""

    def __init__(self, port: int, *, location: str) -> None:
        """Nothing is asked yet."""
        self._port = port
        self._location = location

    @property
    def url(self) -> str:
        """The address of the page for a browser."""
        return f"http://{HOST}:{self._port}"

    def read_location(self) -> Location | None:
        """Whether our code is loaded; None if the page does not answer or does not list it."""
        answer = self._query(_READ_LOCATIONS, {}, _TIMEOUT_S)
        if answer is None:
            return None
        entries = answer["workspaceOrError"].get("locationEntries", [])
        return next(
            (_read_entry(entry) for entry in entries if entry["name"] == self._location), None
        )

    def reload_location(self) -> Location | None:
        """Load our code again; None if the page does not answer."""
        answer = self._query(_RELOAD, {"name": self._location}, _RELOAD_TIMEOUT_S)
        return None if answer is None else _read_entry(answer["reloadRepositoryLocation"])

    def read_assets(self) -> set[dg.AssetKey] | None:
        """Every asset of the loaded code; None if the page does not answer."""
        answer = self._query(_READ_ASSETS, {}, _TIMEOUT_S)
        if answer is None:
            return None
        return {dg.AssetKey(node["assetKey"]["path"]) for node in answer["assetNodes"]}

    def _query(
        self, text: str, variables: dict[str, str], timeout_s: float
    ) -> dict[str, Any] | None:
        """Send a GraphQL query; None if no complete answer comes."""
        body = json.dumps({"query": text, "variables": variables})
        connection = http.client.HTTPConnection(HOST, self._port, timeout=timeout_s)
        try:
            connection.request("POST", "/graphql", body, {"Content-Type": "application/json"})
            data = json.loads(connection.getresponse().read()).get("data")
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return data if isinstance(data, dict) else None


def _read_entry(entry: dict[str, Any]) -> Location:
    loaded = entry.get("locationOrLoadError") or {}
    if loaded.get("className") == _UNREACHABLE:
        return Location(is_loaded=False)
    if loaded.get("__typename") == "PythonError":
        return Location(is_loaded=False, problem=_explain(loaded))
    return Location(is_loaded=entry.get("loadStatus") == "LOADED" and bool(loaded))


def _explain(error: dict[str, Any]) -> str:
    """Why the code did not load: the text of our own error, else the class of the error."""
    chain = [error, *(link["error"] for link in error["errorChain"])]
    for link in chain:
        kind = getattr(errors, link["className"] or "", None)
        if isinstance(kind, type) and issubclass(kind, errors.WalgateError):
            text: str = link["message"].strip().partition(": ")[2]
            return text
    return f"unexpected {chain[-1]['className']}"
