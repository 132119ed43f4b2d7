// The copy button of a session copies what is typed: lines after $ or >>> without the prompt, no output.
document$.subscribe(() => {
  for (const code of document.querySelectorAll(".highlight code")) {
    const lines = code.innerText.split("\n");
    const prompt = ["$ ", ">>> "].find((mark) => lines.some((line) => line.startsWith(mark)));
    if (!prompt) continue;
    const typed = [];
    let continues = false;
    for (const line of lines) {
      if (line.startsWith(prompt)) typed.push(line.slice(prompt.length));
      else if (prompt === ">>> " && /^\.\.\.( |$)/.test(line)) typed.push(line.slice(4));
      else if (prompt === "$ " && continues) typed.push(line);
      else continue;
      continues = line.endsWith("\\");
    }
    code.closest(".highlight").dataset.copy = typed.join("\n");
  }
});

// The explorer of this site, where the site was built with it (`make site`).
document$.subscribe(async () => {
  const links = document.querySelectorAll(".try");
  if (!links.length) return;
  const { ok } = await fetch("try/model/model.json", { method: "HEAD" }).catch(() => ({}));
  for (const link of links) link.hidden = !ok;
});
