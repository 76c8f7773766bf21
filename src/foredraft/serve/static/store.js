// What outlives a reload: the conversation, the settings, the theme. A key lives as long as its tab.

const CONVERSATION = "foredraft.conversation";
const SETTINGS = "foredraft.settings";
const THEME = "foredraft.theme";
const KEY = "foredraft.key";

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // Storage is full or forbidden: the page works without.
  }
}

export const loadTurns = () => read(CONVERSATION, []);
export const saveTurns = (turns) => write(CONVERSATION, turns);
export const loadSettings = () => read(SETTINGS, {});
export const saveSettings = (values) => write(SETTINGS, values);
export const loadTheme = () => read(THEME, "auto");
export const saveTheme = (theme) => write(THEME, theme);
export const loadKey = () => sessionStorage.getItem(KEY) ?? "";
export const saveKey = (key) => sessionStorage.setItem(KEY, key);
