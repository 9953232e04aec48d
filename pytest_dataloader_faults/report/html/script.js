"use strict";
(() => {
  const form = document.querySelector("form.filter");
  const text = form.elements.text;
  const status = form.querySelector("[role=status]");
  const trials = [...document.querySelectorAll(".trial")];
  const hide = (element, isHidden) => { element.hidden = isHidden; };
  const find = (selector) => document.querySelectorAll(selector);

  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/);
    const shown = new Set();
    for (const trial of trials) {
      const fits = words.every((word) => trial.dataset.text.toLowerCase().includes(word));
      hide(trial, !fits);
      if (fits) shown.add(`#${trial.id}`);
    }
    const isShown = (link) => shown.has(link.getAttribute("href"));
    for (const row of find(".matrix tbody tr")) hide(row, ![...row.querySelectorAll("a")].some(isShown));
    for (const link of find(".cause a")) link.classList.toggle("aside", !isShown(link));
    for (const cause of find(".cause")) hide(cause, !cause.querySelector("a:not(.aside)"));
    for (const test of find(".of-test")) hide(test, !test.querySelector(".trial:not([hidden])"));
    for (const fold of find(".others")) fold.open = Boolean(text.value.trim());
    status.textContent = `${shown.size} of ${trials.length} checks shown`;
  };

  const openTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target || !target.matches(".trial")) return;
    text.value = target.hidden ? "" : text.value;
    filter();
    for (let each = target; each; each = each.parentElement.closest("details")) each.open = true;
    target.scrollIntoView();
  };

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", openTarget);
  addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target !== text) {
      event.preventDefault();
      text.focus();
    }
  });

  document.documentElement.classList.add("scripted");
  form.hidden = false;
  filter();
  openTarget();
})();
