"""The page as a person uses it, in a real browser against the real service."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RENDER_MS = 240_000
DROP = """([data, name]) => {
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], name, { type: "image/png" }));
    document.querySelector(".drop").dispatchEvent(
        new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


def drop_picture(page, width=200, height=120, name="meadow.png"):
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(buffer, "PNG")
    page.evaluate(DROP, [base64.b64encode(buffer.getvalue()).decode(), name])
    page.wait_for_selector(".stage canvas")


def type_over(page, selector, text):
    page.focus(selector)
    page.keyboard.press("Control+a")
    page.keyboard.type(text)


def submit_by_keyboard(page, prompt):
    page.keyboard.press("n")
    page.keyboard.type(prompt)
    page.select_option("#size", "custom")
    page.focus("details.more summary")
    page.keyboard.press("Enter")
    fewest_steps = page.get_attribute("#steps", "min")
    small = {"#width": "128", "#height": "96", "#seconds": "0.5", "#steps": fewest_steps}
    for selector, value in small.items():
        type_over(page, selector, value)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(f".job:has-text('{prompt}')")


def test_a_dropped_picture_becomes_a_clip_by_keyboard_alone(page):
    drop_picture(page)
    submit_by_keyboard(page, "slow zoom in on the meadow")
    row = page.locator(".job", has_text="slow zoom in on the meadow")
    row.locator(".chip-state.running, .chip-state.succeeded").wait_for(timeout=RENDER_MS)
    row.locator(".chip-state.succeeded").wait_for(timeout=RENDER_MS)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    video = page.wait_for_selector(".detail video")
    page.wait_for_function(
        "() => document.querySelector('.detail video').duration > 0", timeout=30_000
    )
    assert video.evaluate("v => v.error") is None
    assert page.locator(".files td a").count() >= 2
    video.evaluate("v => v.pause()")
    before = video.evaluate("v => v.currentTime")
    page.keyboard.press(".")
    page.wait_for_function(
        "t => document.querySelector('.detail video').currentTime > t", arg=before
    )


def test_the_crop_box_is_the_rule_of_the_engine(page):
    drop_picture(page, width=300, height=100)
    boxes = page.evaluate("""async () => {
        const { fitBox } = await import(new URL("model.js", document.querySelector("script").src));
        const picture = { width: 300, height: 100 }, size = { width: 128, height: 128 };
        return [fitBox(picture, size, "crop"), fitBox(picture, size, "pad")];
    }""")
    crop, pad = boxes
    assert (crop["x"], crop["y"], crop["width"], crop["height"]) == (100, 0, 100, 100)
    assert (pad["x"], pad["y"], pad["width"], pad["height"]) == (0, -100, 300, 300)


def test_a_job_can_be_duplicated_filtered_and_deleted(page):
    drop_picture(page, name="hill.png")
    submit_by_keyboard(page, "pan to the left over the hill")
    row = page.locator(".job", has_text="pan to the left over the hill")
    row.locator(".chip-state.succeeded").wait_for(timeout=RENDER_MS)
    row.locator("a.open").click()
    page.get_by_role("button", name="Duplicate").click()
    page.wait_for_function("() => document.activeElement.id === 'prompt'")
    assert page.input_value("#prompt") == "pan to the left over the hill"
    assert page.is_checked("#lock")

    page.keyboard.press("Escape")
    page.keyboard.press("v")
    page.fill("#filter-text", "over the hill")
    page.wait_for_url("**q=over+the+hill*")
    page.wait_for_function("() => document.querySelectorAll('.job').length === 1")
    page.locator(".job input[type=checkbox]").check()
    page.get_by_role("toolbar").get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    assert "cannot be undone" in dialog.inner_text()
    dialog.get_by_role("button", name="Delete").click()
    page.wait_for_selector(".empty-list")


def test_a_wrong_key_is_said_clearly(page):
    page.keyboard.press("k")
    page.fill("#key", "sk-wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog .problem:has-text('does not know this key')")
    page.keyboard.press("Escape")


def test_an_answer_streams_and_its_speed_is_shown(page):
    page.keyboard.press("c")
    type_over(page, "#max-tokens", "24")
    page.focus("#message")
    page.keyboard.type("Say hello.")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.bubble.assistant')?.textContent.trim().length > 0",
        timeout=90_000,
    )
    page.wait_for_selector("#send:visible", timeout=90_000)
    assert "tokens" in page.inner_text("#rate")
    assert page.locator(".bubble.assistant .problem").count() == 0


def test_every_control_has_a_name(page):
    nameless = page.evaluate("""() => {
        const isNamed = (e) => e.ariaLabel || e.textContent.trim() || e.labels?.length || e.title;
        return [...document.querySelectorAll("button, a, input, select, textarea")]
            .filter((e) => e.offsetParent && !isNamed(e)).map((e) => e.outerHTML);
    }""")
    assert nameless == []
