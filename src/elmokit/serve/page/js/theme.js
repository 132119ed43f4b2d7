// The chosen colours, before anything is drawn: "light", "dark", or none for what the system says.
try {
  const chosen = localStorage.getItem("elmokit-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // a browser that keeps nothing follows the system
}
