// The page: four panels of which one is visible, and an address that restores it: #panel?field=value&…

import { redraw } from "./charts.js";
import { contextPanel } from "./context.js";
import { neighboursPanel } from "./neighbours.js";
import { nextPanel } from "./next.js";
import { later, make } from "./panel.js";
import { addressOf, facts, isLocal, keepKey } from "./server.js";
import { tasksPanel } from "./tasks.js";

const MAKERS = { context: contextPanel, next: nextPanel, neighbours: neighboursPanel, tasks: tasksPanel };
const panels = {};
let current = "context";

// ---- addresses -------------------------------------------------------------------------------------------------------

function address(name) {
  return `#${name}?${new URLSearchParams(panels[name].link())}`;
}

function read() {
  const [name, query] = location.hash.slice(1).split(/\?(.*)/s);
  const isThere = tabs.some((tab) => tab.getAttribute("aria-controls") === name);
  return isThere ? { name, params: new URLSearchParams(query ?? "") } : { name: "context", params: new URLSearchParams() };
}

// a slider that is moved changes the view more often than browsers let an address change
const keepAddress = later(() => history.replaceState(null, "", address(current)), 250);

function changed(name) {
  if (name === current) keepAddress();
  showLink(name);
}

function showLink(name) {
  document.querySelector(`#${name} .link`).href = address(name);
}

function show() {
  const { name, params } = read();
  current = name;
  for (const tab of tabs) {
    const isShown = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", `${isShown}`);
    tab.tabIndex = isShown ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !isShown;
  }
  panels[name]?.restore(params);
  if (panels[name]) showLink(name);
}

// ---- tabs, links, colours, the key -----------------------------------------------------------------------------------

let tabs = [...document.querySelectorAll("[role=tab]")];

for (const tab of tabs) {
  const name = tab.getAttribute("aria-controls");
  tab.addEventListener("click", () => {
    if (name !== current) location.hash = panels[name] ? address(name) : name;
  });
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const other = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    other.focus();
    other.click();
  });
}

for (const link of document.querySelectorAll(".link")) {
  link.addEventListener("click", async (event) => {
    event.preventDefault();
    history.replaceState(null, "", link.hash);
    try {
      await navigator.clipboard.writeText(link.href);
      flash(link, "Copied");
    } catch {
      flash(link, "Copy it from the address bar"); // a page that came over plain HTTP may not write to the clipboard
    }
  });
}

function flash(link, text) {
  link.dataset.text ??= link.textContent;
  link.textContent = text;
  setTimeout(() => (link.textContent = link.dataset.text), 2000);
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is that of the view
  document.getElementById("main").focus();
});

const themes = { "": "Auto", light: "Light", dark: "Dark" };
const themeButton = document.getElementById("theme");

function showTheme() {
  const name = themes[document.documentElement.dataset.theme ?? ""];
  themeButton.querySelector(".name").textContent = name;
  themeButton.setAttribute("aria-label", `Colours: ${name}`);
  redraw();
  for (const panel of Object.values(panels)) panel.repaint();
}

themeButton.addEventListener("click", () => {
  const order = Object.keys(themes);
  const theme = order[(order.indexOf(document.documentElement.dataset.theme ?? "") + 1) % order.length];
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("elmokit-theme", theme);
  } catch {
    // then it holds for this visit
  }
  showTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);

const keyForm = document.getElementById("key-form");
document.addEventListener("key-wanted", () => {
  keyForm.hidden = false;
  keyForm.elements.key.focus();
});
keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(keyForm.elements.key.value);
  keyForm.hidden = true;
  if (panels.context) panels[current].again();
  else begin();
});

// ---- begin -----------------------------------------------------------------------------------------------------------

if (isLocal) for (const part of document.querySelectorAll("[data-server]")) part.hidden = true;
document.addEventListener("model-loading", ({ detail: { loaded, total, what } }) => {
  if (panels.context) return; // the output layer comes after the first answer
  const [place, bar] = [document.getElementById("loading"), document.querySelector("#loading progress")];
  place.hidden = false;
  const megabytes = (bytes) => (bytes / 1e6).toFixed(0);
  place.querySelector("span").textContent = total ? `${what}: ${megabytes(loaded)} of ${megabytes(total)} MB` : `${what} …`;
  if (total) bar.value = loaded / total;
  else bar.removeAttribute("value");
});

// the name of the model, or a list of the names if there are several
function modelName({ model_id: name, models = [] }) {
  if (models.length < 2) return make("strong", { text: name });
  const names = models.map((one) => make("option", { value: one, text: one, selected: one === name }));
  return make("select", { "aria-label": "Model", on: { change: ({ target }) => location.assign(addressOf(target.value)) } }, ...names);
}

async function begin() {
  const line = document.getElementById("facts");
  let info;
  try {
    info = await facts();
  } catch (error) {
    line.textContent = error.message;
    line.classList.add("error");
    return;
  }
  line.classList.remove("error");
  const words = info.vocabulary_size ? `, ${info.vocabulary_size.toLocaleString("en")} words` : "";
  const missing = info.missing === undefined ? "" : ` · there is no model “${info.missing}”`;
  line.replaceChildren(modelName(info), ` · ${info.num_layers} layers of ${info.vector_dim} dimensions${words}${missing}`);
  document.getElementById("loading").hidden = true;
  const isThere = { context: true, next: info.language_model, neighbours: info.index_words !== null, tasks: info.tasks.length > 0 };
  for (const tab of tabs) tab.hidden = !isThere[tab.getAttribute("aria-controls")];
  tabs = tabs.filter((tab) => !tab.hidden);
  for (const part of document.querySelectorAll("nav, main")) part.hidden = false; // there is a model to ask
  for (const hint of document.querySelectorAll("[data-without]")) hint.hidden = isLocal || isThere[hint.dataset.without];
  for (const [name, maker] of Object.entries(MAKERS)) {
    if (!isThere[name]) continue;
    panels[name] = maker(document.getElementById(name), info, () => changed(name));
  }
  showTheme();
  show();
}

addEventListener("hashchange", show);
begin();
