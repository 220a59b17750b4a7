"""Boxes of elements of a page, and rules that hold for each page whatever it shows."""

from __future__ import annotations

from collections.abc import Sequence

from playwright.async_api import Page

_BOXES = """selectors => Object.fromEntries(selectors.map(selector => {
    const found = [...document.querySelectorAll(selector)].find(node => node.checkVisibility());
    const box = found?.getBoundingClientRect();
    return [selector, box ? [box.x, box.y, box.width, box.height].map(Math.round) : null];
}))"""
_WRONG = """() => {
    const found = [];
    const tagOf = node => [node.tagName.toLowerCase(), ...node.classList].join(".");
    const nameOf = node => `${tagOf(node.parentElement)} > ${tagOf(node)} "${node.textContent.trim().slice(0, 30)}"`;
    const isHidden = node => !node.checkVisibility({ visibilityProperty: true }) || node.closest(".sr, .skip, option");
    const hasText = node => node.textContent.trim() !== "";
    const ownText = node => [...node.childNodes].some(child => child.nodeType === Node.TEXT_NODE && hasText(child));
    const isWide = node => node.clientWidth > 0 && node.scrollWidth > node.clientWidth + 1;
    const canScroll = node => /auto|scroll/.test(getComputedStyle(node).overflowX);
    const isInScroller = node => Boolean(node) && (canScroll(node) && isWide(node) || isInScroller(node.parentElement));
    const isInFlow = node => {
        const { position, display } = getComputedStyle(node);
        return !isHidden(node) && hasText(node) && !/absolute|fixed|sticky/.test(position) && display !== "inline";
    };
    const isOver = (first, second) => {
        const [a, b] = [first.getBoundingClientRect(), second.getBoundingClientRect()];
        return Math.min(a.right, b.right) - Math.max(a.left, b.left) > 3
            && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
    };
    const isCut = (node, style) => {
        if (style.display === "inline" || style.overflowX === "visible") return false;
        if (!isWide(node) || !hasText(node)) return false;
        return canScroll(node) ? style.scrollbarWidth === "none" : style.textOverflow !== "ellipsis";
    };
    for (const node of document.body.querySelectorAll("*")) {
        if (isHidden(node) || node.closest("svg")) continue;
        const box = node.getBoundingClientRect();
        if (isCut(node, getComputedStyle(node)))
            found.push(`${nameOf(node)} is cut: ${node.scrollWidth} px in ${node.clientWidth}`);
        if (ownText(node) && (box.right > innerWidth + 1 || box.left < -1) && !isInScroller(node.parentElement))
            found.push(`${nameOf(node)} is outside of the window: ${Math.round(box.left)} to ${Math.round(box.right)}`);
        const flow = [...node.children].filter(isInFlow);
        flow.forEach((first, i) => flow.slice(i + 1, i + 4).forEach(second => {
            if (isOver(first, second)) found.push(`${nameOf(first)} overlaps ${nameOf(second)}`);
        }));
    }
    for (const text of document.querySelectorAll("svg text"))
        for (const bar of text.parentElement.querySelectorAll(":scope > rect"))
            if (isOver(text, bar)) found.push(`the word ${text.textContent} overlaps its bar`);
    return found;
}"""


async def measured(page: Page, selectors: Sequence[str]) -> dict[str, list[int] | None]:
    """Return the boxes of the first visible element of each selector: x, y, width, height; None without one."""
    return dict(await page.evaluate(_BOXES, selectors))


async def wrong(page: Page) -> list[str]:
    """Return the texts that are cut without a scroll bar or an ellipsis, outside of the window, or over each other."""
    return list(await page.evaluate(_WRONG))
