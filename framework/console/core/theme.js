/** Light or dark: as the system, unless the person chose one. */

const STORED = "agentsd.theme";

/** Apply the stored choice. */
export function applyTheme() {
  const stored = localStorage.getItem(STORED);
  if (stored) document.documentElement.dataset.theme = stored;
}

/** Return whether the page is dark. */
export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Change to the other theme, and keep it. */
export function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem(STORED, theme);
}
