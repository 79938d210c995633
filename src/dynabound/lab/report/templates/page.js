for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
    const key = row => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)], [m, n] = [parseFloat(x), parseFloat(y)];
      const none = text => text.startsWith("–");   // missing values stay at the end
      if (none(x) || none(y)) return none(x) - none(y);
      return down * (isNaN(m) || isNaN(n) ? x.localeCompare(y) : m - n);
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  }));
}
let closed = [];
addEventListener("beforeprint", () => {   // closed details are printed, too
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach(details => details.open = true);
});
addEventListener("afterprint", () => closed.forEach(details => details.open = false));
