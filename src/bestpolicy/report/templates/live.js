"use strict";
(() => {
  const shown = document.documentElement.dataset.version;
  const note = document.querySelector(".live");
  const details = [...document.querySelectorAll("details")];
  const kept = JSON.parse(sessionStorage.getItem("open") ?? "null");
  if (kept) details.forEach((one, i) => { one.open = kept[i] ?? one.open; });
  const follow = "This page follows the run.";
  note.textContent = follow;
  const look = async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== shown) {
        sessionStorage.setItem("open", JSON.stringify(details.map((one) => one.open)));
        location.reload();
        return;
      }
      note.textContent = follow;
    } catch {
      note.textContent = "The server has stopped: this page shows its last state.";
    }
    setTimeout(look, 1000);
  };
  setTimeout(look, 1000);
})();
