"use strict";
window.prepare = () => {
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    const value = (row, i) => row.cells[i].dataset.value ?? row.cells[i].textContent.trim();
    heads.forEach((head, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => {
          const x = value(a, i), y = value(b, i);
          if (x === "" || y === "") return (x === "") - (y === "");
          const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
          return up ? order : -order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  }
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const link = document.getElementById(button.dataset.copy);
    button.hidden = false;
    button.addEventListener("click", async () => {
      const bytes = Uint8Array.from(atob(link.href.split(",")[1]), (c) => c.charCodeAt(0));
      const text = new TextDecoder().decode(bytes);
      const label = button.textContent;
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const area = document.createElement("textarea");
        area.value = text;
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = label; }, 1500);
    });
  }
};
window.prepare();
