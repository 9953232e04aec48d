"use strict";
(() => {
  const form = document.querySelector("form.filter");
  const { text, word, check } = form.elements;
  const told = form.querySelector("[role=status]");
  const trials = [...document.querySelectorAll(".trial")].map((element) => ({
    element,
    ...element.dataset,
    text: `${element.dataset.check} ${element.dataset.test}`.toLowerCase(),
  }));
  const links = [...document.querySelectorAll(".cause a")];
  const table = document.querySelector(".matrix table");
  const matrix = document.querySelector(".matrix");
  const more = document.querySelector(".more");
  const folds = [...document.querySelectorAll(".others")];

  const hide = (element, isHidden) => {
    if (element.hidden !== isHidden) element.hidden = isHidden;
  };

  const filterTrials = () => {
    const words = text.value.toLowerCase().split(/\s+/);
    const shown = new Set();
    for (const trial of trials) {
      const fits =
        (!word.value || trial.word === word.value) &&
        (!check.value || trial.check === check.value) &&
        words.every((each) => trial.text.includes(each));
      hide(trial.element, !fits);
      if (fits) shown.add(`#${trial.element.id}`);
    }
    return shown;
  };

  const filterMatrix = (shown) => {
    const columns = new Set();
    for (const row of table.tBodies[0].rows) {
      const found = [...row.querySelectorAll("a")].filter((a) => shown.has(a.getAttribute("href")));
      hide(row, !found.length);
      for (const a of found) columns.add(a.closest("td").cellIndex);
    }
    for (const row of table.rows) {
      for (const cell of row.cells) hide(cell, cell.cellIndex > 0 && !columns.has(cell.cellIndex));
    }
  };

  const hideEmpty = (selector, isShown) => {
    for (const each of document.querySelectorAll(selector)) hide(each, !isShown(each));
  };

  const isFiltered = () => Boolean(text.value.trim() || word.value || check.value);

  // Shadows where the matrix goes on, and how many datasets are out of view.
  const hintAtMore = () => {
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = matrix;
    const right = scrollLeft + clientWidth;
    const marks = matrix.parentElement.classList;
    marks.toggle("more-left", scrollLeft > 1);
    marks.toggle("more-right", right < matrix.scrollWidth - 1);
    marks.toggle("more-above", scrollTop > 1);
    marks.toggle("more-below", scrollTop + clientHeight < matrix.scrollHeight - 1);
    const cut = [...table.rows[0].cells].slice(1).filter(
      (cell) => !cell.hidden && cell.offsetLeft + cell.offsetWidth > right + 1,
    );
    more.textContent = `${cut.length} more dataset${cut.length > 1 ? "s" : ""} \u2192`;
    hide(more, !cut.length);
  };

  const filter = () => {
    const shown = filterTrials();
    filterMatrix(shown);
    document.documentElement.classList.toggle("filtered", isFiltered());
    for (const fold of folds) fold.open = isFiltered();
    hideEmpty("section.of-test", (section) => section.querySelector(".trial:not([hidden])"));
    for (const a of links) a.classList.toggle("aside", !shown.has(a.getAttribute("href")));
    hideEmpty(".cause, .group", (group) => group.querySelector("a:not(.aside)"));
    hideEmpty(".causes", (section) => section.querySelector(".cause:not([hidden])"));
    told.textContent = `${shown.size} of ${trials.length} checks shown`;
    hintAtMore();
  };

  const showAll = () => {
    text.value = word.value = check.value = "";
    filter();
  };

  const openTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target || !target.matches(".trial")) return;
    if (target.hidden) showAll();
    for (let each = target; each; each = each.parentElement.closest("details")) each.open = true;
    target.scrollIntoView();
  };

  const copy = async (button) => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      // Where the browser has no clipboard for pages, or refuses it.
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
  };

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.querySelector("button").addEventListener("click", showAll);
  addEventListener("hashchange", openTarget);
  matrix.addEventListener("scroll", hintAtMore, { passive: true });
  new ResizeObserver(hintAtMore).observe(matrix);
  more.addEventListener("click", () => matrix.scrollBy({ left: matrix.clientWidth / 2 }));
  addEventListener("click", (event) => {
    const button = event.target.closest(".copy");
    if (button) copy(button);
  });
  addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input, select");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      text.focus();
    }
  });

  document.documentElement.classList.add("scripted");
  form.hidden = false;
  filter();
  openTarget();
})();
