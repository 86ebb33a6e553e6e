"use strict";
(() => {
  const root = document.documentElement;
  const say = (text) => {
    const note = document.querySelector(".live");
    if (note && note.textContent !== text) note.textContent = text;
  };
  const place = (one) => one.closest("section")?.querySelector("h2, h3")?.textContent;
  const tables = () => [...document.querySelectorAll("table.sortable")];
  const renew = async () => {
    const answer = await fetch("./", { cache: "no-store" });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = new Map([...document.querySelectorAll("details")].map((one) => [place(one), one.open]));
    const sorted = new Map(tables().map((one) => [place(one), [...one.tHead.rows[0].cells].map((head) => head.getAttribute("aria-sort"))]));
    document.querySelector("main").replaceWith(document.adoptNode(page.querySelector("main")));
    document.title = page.title;
    root.dataset.version = page.documentElement.dataset.version;
    window.prepare();
    for (const one of document.querySelectorAll("details")) one.open = open.get(place(one)) ?? one.open;
    for (const one of tables()) {
      (sorted.get(place(one)) ?? []).forEach((way, i) => {
        for (let n = way === "descending" ? 2 : way ? 1 : 0; n > 0; n -= 1) one.tHead.rows[0].cells[i].querySelector("button").click();
      });
    }
  };
  const look = async () => {
    try {
      const answer = await fetch("now", { cache: "no-store" });
      if (answer.ok) {
        const now = await answer.json();
        if (now.version !== root.dataset.version) await renew();
        say(now.clock || "This page follows the run.");
      }
    } catch {
      say("The server has stopped: this page shows its last state.");
    }
    setTimeout(look, 1000);
  };
  look();
})();
