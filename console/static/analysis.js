// The analysts' page: the past by ranges, and SQL.

import { Past } from "./past.js";
import { Saved } from "./saved.js";
import { Sql } from "./sql.js";
import { themeSwitch } from "./theme_switch.js";

const past = new Past();
new Sql();
new Saved();
themeSwitch(document.getElementById("theme"), () => past.restyle());
