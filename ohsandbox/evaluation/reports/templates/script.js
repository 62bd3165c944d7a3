"use strict";
(() => {
  const list = document.getElementById("trials"), filter = document.getElementById("filter");
  const outcome = document.getElementById("outcome"), shown = document.getElementById("shown");
  if (!list || !filter) return;
  document.documentElement.classList.add("js");
  const rows = [...list.querySelectorAll(":scope > details")];
  const unit = shown.textContent.split(" ")[1];
  const names = rows.map((row) => row.dataset.t.toLowerCase());
  let waiting = 0;
  const apply = () => {
    const text = filter.value.toLowerCase(), wanted = outcome.value;
    let count = 0;
    rows.forEach((row, at) => {
      const name = row.dataset.n;
      const fits = !wanted || (wanted[0] === "!" ? name !== wanted.slice(1) : name === wanted);
      const keep = fits && names[at].includes(text);
      row.hidden = !keep;
      count += keep;
    });
    shown.textContent = count === rows.length ? `${count} ${unit}` : `${count} of ${rows.length} ${unit}`;
  };
  filter.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(apply, 80); });
  outcome.addEventListener("change", apply);
  const order = new Intl.Collator(undefined, { numeric: true });
  const buttons = [...document.querySelectorAll("button[data-sort]")];
  buttons.forEach((button) => button.addEventListener("click", () => {
    const key = button.dataset.sort, down = button.dataset.order === "up";
    buttons.forEach((other) => { delete other.dataset.order; other.removeAttribute("aria-pressed"); });
    button.dataset.order = down ? "down" : "up";
    button.setAttribute("aria-pressed", "true");
    const sign = down ? -1 : 1;
    const sorted = [...rows].sort((a, b) => sign * (key === "t" ? order.compare(a.dataset.t, b.dataset.t) : a.dataset[key] - b.dataset[key]));
    list.append(...sorted);
  }));
  apply();
})();
