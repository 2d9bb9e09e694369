"""Input pictures in the store: kept once, found by file id or data: URL."""

from __future__ import annotations

from service.auth import Principal
from service.context import Gateway
from service.errors import BadRequest, shown
from service.video.images import ImageRules, Picture, decode_data_url, inspect
from service.video.request import InputImage
from workers.errors import FileNotFound
from workers.settings import Settings
from workers.store.files import StoredFile


def image_rules(settings: Settings) -> ImageRules:
    """The bounds of input pictures of this deployment."""
    return ImageRules(
        max_bytes=settings.max_upload_bytes,
        max_pixels=settings.max_image_pixels,
        max_side=settings.max_image_side,
    )


def json_limit(settings: Settings) -> int:
    """How large a JSON body may be that holds one picture in base64. Units: bytes."""
    return settings.max_upload_bytes * 4 // 3 + 2**20


def find_picture(gateway: Gateway, principal: Principal, image: str, *, param: str) -> StoredFile:
    """The stored picture that a file id or a data: URL means.

    Raises: BadRequest when it is neither, is not this key's, or is no picture.
    """
    rules = image_rules(gateway.settings)
    if image[:5].lower() == "data:":
        data = decode_data_url(image, param=param)
        return store_picture(
            gateway, principal, inspect(data, name="picture", rules=rules, param=param)
        )
    if "://" in image[:32]:
        raise BadRequest(
            f"{param} is an address; addresses are never fetched: upload the picture.",
            param=param,
            code="invalid_image_url",
        )
    try:
        stored = gateway.client.store.files.get(image, key_id=principal.sees)
    except FileNotFound as error:
        text = f"{param} {shown(image)} is no file of this key; upload it first."
        raise BadRequest(text, param=param, code="file_not_found") from error
    if stored.width is not None and stored.height is not None:
        return stored
    with gateway.client.store.files.open(image, key_id=principal.sees) as file:
        picture = inspect(file.read(), name=stored.name, rules=rules, param=param)
    return store_picture(gateway, principal, picture)


def store_picture(gateway: Gateway, principal: Principal, picture: Picture) -> StoredFile:
    """Keep a picture; the same bytes of the same key are one file."""
    return gateway.client.store.files.put(
        picture.data,
        name=picture.name,
        media_type=picture.media_type,
        key_id=principal.key_id,
        purpose="vision",
        width=picture.width,
        height=picture.height,
    )


def input_image(stored: StoredFile) -> InputImage:
    """A stored picture as the size rule sees it."""
    assert stored.width is not None
    assert stored.height is not None
    return InputImage(id=stored.id, name=stored.name, width=stored.width, height=stored.height)
