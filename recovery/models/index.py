"""The index of a model in a store: its versions, where each is to be, and its labels. Pure.

    models/NAME/VERSION/        a published version; model servers poll this directory
    .models/NAME/index/SERIAL   the index; a serial can be taken once, and the highest one is valid
    .models/NAME/kept/ID/       the files of a version that is not published, or not yet

The index says where each version is to be. Directories follow by renames, each of which moves a whole
version, so a model server sees all of one or nothing. A version is in the index only once all its files are
in `kept`. So whoever reads the index can finish what an earlier writer has begun. A number belongs to one ID
for good.

An index is written under the next serial alone. Of two writers one gets a conflict and reads again. A writer
with an earlier attempt than that in the index is refused: it belongs to a generation that is over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from supervisor.contract import codec
from supervisor.contract.bounds import MAX_INT
from supervisor.contract.errors import IncompatibleRecord, NotFound, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.job.serving import MODELS, check_server

RECORDS = ".models"
INDEX, KEPT, REMOVED = "index", "kept", "removed"
MAX_INDEX_BYTES = 8 << 20
MOST_VERSIONS = 1_000
"""Versions of which an index knows, removed ones among them. The oldest removed ones are forgotten first."""
MOST_REFUSED = 20
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", re.ASCII)
_SERIAL = re.compile(r"[0-9]{10}", re.ASCII)
_NUMBER = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


class VersionState(Enum):
    """Where a version is to be: where servers see it, kept for an operator, or nowhere any more."""

    PUBLISHED = "published"
    WITHDRAWN = "withdrawn"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """One version.

    Attributes:
        version: its number.
        id: the name of its directory while it is not published.
        state: where it is to be.
        digest: of the names, sizes and checksums of all its files.
        source: the path of the export, below the output directory of `member`.
        check: what it was tried by: a value of `ModelCheck`.
        job_uuid, generation, attempt: of the attempt whose node published it. Earlier releases note no UUID.
        taken_ms: the time at which it was taken, on the wall clock of that node.
    """

    version: int
    id: str
    digest: str
    source: str
    member: str
    check: str
    size: int
    generation: int
    attempt: int
    taken_ms: int
    state: VersionState = VersionState.PUBLISHED
    job_uuid: str = ""

    @property
    def is_published(self) -> bool:
        """Whether servers are to see it."""
        return self.state is VersionState.PUBLISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIndex:
    """All that is known of a model.

    Attributes:
        model: its name.
        job: the job that publishes it.
        serial: number of this index.
        generation, attempt: of the newest attempt that has written; earlier ones are refused.
        last: the highest number that was ever given to a version.
        versions: by their numbers, oldest first.
        labels: label -> version.
        held: new versions are not published until an operator says so.
        refused: source -> why it is no version; the newest ones.
        keep: the number of published versions that are kept.
        servers: model servers that are told of labels.
    """

    model: str
    job: str = ""
    serial: int = 0
    generation: int = 0
    attempt: int = 0
    last: int = 0
    versions: tuple[ModelVersion, ...] = ()
    labels: dict[str, int] = field(default_factory=dict)
    held: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    keep: int = 3
    servers: tuple[str, ...] = ()

    @property
    def published(self) -> tuple[ModelVersion, ...]:
        """The versions that servers are to see, oldest first."""
        return tuple(each for each in self.versions if each.is_published)

    @property
    def present(self) -> tuple[ModelVersion, ...]:
        """The versions that are in the store, oldest first."""
        return tuple(each for each in self.versions if each.state is not VersionState.REMOVED)

    def find(self, version: int) -> ModelVersion:
        """The version with a number. Raises NotFound for one that is not there, or not any more."""
        found = next((each for each in self.present if each.version == version), None)
        if found is None:
            known = ", ".join(str(each.version) for each in self.present)
            raise NotFound(f"model {self.model} has no version {version}; it has {known or 'none'}")
        return found

    def has(self, digest: str, source: str, member: str, job_uuid: str) -> bool:
        """Whether this export of this life of the job was taken, with these bytes."""
        key = (digest, source, member)
        return any(
            (each.digest, each.source, each.member) == key and each.job_uuid in (job_uuid, "")
            for each in self.versions
        )


def claim_objection(index: ModelIndex, job: str, generation: int, attempt: int) -> str:
    """Why this attempt may not change the index; empty if it may."""
    if index.job and index.job != job:
        return f"model {index.model} of this store is job {index.job}'s; name another one in serving.model"
    if (index.generation, index.attempt) > (generation, attempt):
        later = f"{index.generation}.{index.attempt}"
        return f"attempt {generation}.{attempt} publishes nothing any more, as attempt {later} does"
    return ""


def with_version(index: ModelIndex, new: ModelVersion, seen: Iterable[str] = ()) -> ModelIndex:
    """The index with one more version, under the next number; `new.version` does not count.

    `seen`: the names of directories in the model's place. A number that somebody else has taken there is
    passed over.
    """
    number = next_version(index, seen)
    state = VersionState.WITHDRAWN if index.held else VersionState.PUBLISHED
    versions = (*index.versions, replace(new, version=number, state=state))
    refused = {source: why for source, why in index.refused.items() if source != new.source}
    return thinned(replace(index, last=number, versions=versions, refused=refused))


def next_version(index: ModelIndex, seen: Iterable[str] = ()) -> int:
    """A number above all that were ever given, and above all directories there. Raises UserError."""
    taken = [int(name) for name in seen if is_version(name)]
    number = max((index.last, *taken)) + 1
    if number > MAX_INT:
        raise UserError(
            f"model {index.model} has a directory {number - 1}, and no version can be higher; remove it"
        )
    return number


def thinned(index: ModelIndex) -> ModelIndex:
    """The index without versions that are too old.

    Of the published ones `keep` stay, and all that have labels; of withdrawn ones as many, none of them older
    than the published ones that stay.
    """
    newest = {each.version for each in index.published[-index.keep :]}
    withdrawn = [each.version for each in index.present if not each.is_published][-index.keep :]
    oldest = min(newest, default=0)
    kept = newest | set(index.labels.values()) | {version for version in withdrawn if version > oldest}
    versions = tuple(
        each if each.version in kept else replace(each, state=VersionState.REMOVED) for each in index.versions
    )
    surplus = len(versions) - MOST_VERSIONS
    removed = [each.version for each in versions if each.state is VersionState.REMOVED]
    forgotten = set(removed[: max(0, surplus)])
    return replace(index, versions=tuple(each for each in versions if each.version not in forgotten))


def with_refused(index: ModelIndex, source: str, why: str) -> ModelIndex:
    """The index with the reason why an export is no version."""
    refused = {**{path: text for path, text in index.refused.items() if path != source}, source: why}
    return replace(index, refused=dict(list(refused.items())[-MOST_REFUSED:]))


def rolled_back(index: ModelIndex, version: int | None) -> ModelIndex:
    """The index with `version` as the newest published one; None: the one before the newest.

    Newer ones are withdrawn, and new exports are held. Raises NotFound, UserError.
    """
    if version is None:
        if len(index.published) < 2:
            raise NotFound(f"model {index.model} has no published version before its newest")
        version = index.published[-2].version
    target = index.find(version)
    above = sorted(label for label, number in index.labels.items() if number > version)
    if above:
        text = f"label {above[0]} is on version {index.labels[above[0]]}, which would be withdrawn"
        raise UserError(f"{text}; move it first: label {above[0]} {version}")
    moved = tuple(
        _moved(each, VersionState.WITHDRAWN)
        if each.version > version
        else _moved(each, VersionState.PUBLISHED)
        if each is target
        else each
        for each in index.versions
    )
    return replace(index, versions=moved, held=True)


def put_forward(index: ModelIndex, version: int | None) -> ModelIndex:
    """The index with a withdrawn version published; None: all, and new exports are published again.

    Raises NotFound.
    """
    if version is None:
        moved = tuple(_moved(each, VersionState.PUBLISHED) for each in index.versions)
        return thinned(replace(index, versions=moved, held=False))
    target = index.find(version)
    moved = tuple(_moved(each, VersionState.PUBLISHED) if each is target else each for each in index.versions)
    return replace(index, versions=moved)


def labelled(index: ModelIndex, label: str, version: int | None) -> ModelIndex:
    """The index with a label on a published version; None: without that label. Raises NotFound, UserError."""
    check_name("label", label)
    labels = {name: number for name, number in index.labels.items() if name != label}
    if version is None:
        if label not in index.labels:
            raise NotFound(f"model {index.model} has no label {label}")
        return replace(index, labels=labels)
    if not index.find(version).is_published:
        raise UserError(f"version {version} is withdrawn; publish it first")
    return replace(index, labels={**labels, label: version})


def _moved(each: ModelVersion, state: VersionState) -> ModelVersion:
    return each if each.state is VersionState.REMOVED else replace(each, state=state)


def model_path(model: str) -> str:
    """The directory that model servers poll, below the root of the store."""
    return f"{MODELS}/{model}"


def record_path(model: str, what: str) -> str:
    """A directory of the model's records: `INDEX`, `KEPT` or `REMOVED`."""
    return f"{RECORDS}/{model}/{what}"


def index_name(serial: int) -> str:
    """The name of an index; names sort by serial."""
    return f"{serial:010d}"


def is_index(name: str) -> bool:
    """Whether a file of this name is an index."""
    return _SERIAL.fullmatch(name) is not None


def is_version(name: str) -> bool:
    """Whether a model server takes a directory of this name for a version."""
    return _NUMBER.fullmatch(name) is not None and int(name) <= MAX_INT


def encode_index(index: ModelIndex) -> bytes:
    """The index as it is stored."""
    return codec.encode(index)


def parse_index(raw: bytes) -> ModelIndex:
    """Read an index. Another writer of the store may have written anything.

    So what makes a path, a configuration or an address is checked.

    Raises IncompatibleRecord.
    """
    index = codec.decode(ModelIndex, raw)
    try:
        check_name("model", index.model)
    except UserError as error:
        raise IncompatibleRecord(f"an index of a model is of another name: {error}") from error
    try:
        for label in index.labels:
            check_name("label", label)
        for server in index.servers:
            check_server(server)
    except UserError as error:
        raise IncompatibleRecord(
            f"an index of model {index.model} is not as agents write it: {error}"
        ) from error
    if not set(index.labels.values()) <= {each.version for each in index.versions} or index.keep < 1:
        raise IncompatibleRecord(f"an index of model {index.model} has wrong labels, or keeps no version")
    numbers = [each.version for each in index.versions]
    if numbers != sorted(set(numbers)) or any(not 0 < each <= index.last <= MAX_INT for each in numbers):
        raise IncompatibleRecord(f"an index of model {index.model} has wrong numbers of versions")
    if not all(_ID.fullmatch(each.id) for each in index.versions):
        raise IncompatibleRecord(f"an index of model {index.model} names a directory that cannot be its")
    if len({each.id for each in index.versions}) != len(index.versions):
        raise IncompatibleRecord(f"an index of model {index.model} has two versions in one directory")
    return index


def digest_text(files: Mapping[str, tuple[int, int]]) -> bytes:
    """The bytes of which the digest of a version is taken: path -> (size, crc32c) of all its files."""
    return "\n".join(f"{path} {size} {crc:08x}" for path, (size, crc) in sorted(files.items())).encode()
