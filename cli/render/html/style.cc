// SPDX-License-Identifier: Apache-2.0
#include "cli/render/html/style.h"

#include <fmt/core.h>

#include <array>

namespace shardwright::cli::html {
namespace {

struct Color {
  const char* name;
  const char* light;
  const char* dark;
};

// Of operations and of parts of memory and time. Neighbours in a drawing differ in lightness, too.
constexpr std::array<Color, 32> kColors = {{
    {"product", "#3566c8", "#5b8def"},    {"attention", "#8044b8", "#a877dc"},
    {"memory", "#d99a2b", "#dba84e"},     {"gather", "#16877a", "#37b0a1"},
    {"reduce", "#c2476a", "#dc6f8f"},     {"copy", "#8b95a1", "#7d8894"},
    {"optimizer", "#5f7f24", "#8fb04c"},  {"host", "#c3cad3", "#4b5563"},
    {"forward", "#3566c8", "#5b8def"},    {"recompute", "#9db8ea", "#2f4f8f"},
    {"backward", "#6a45b5", "#9273d8"},   {"master", "#274a94", "#6d93e8"},
    {"parameters", "#3566c8", "#4a7ce0"}, {"gradients", "#c2476a", "#dc6f8f"},
    {"optstate", "#5f7f24", "#8fb04c"},   {"gatherbuf", "#16877a", "#37b0a1"},
    {"gradbuf", "#dd8aa3", "#93405a"},    {"activations", "#d99a2b", "#dba84e"},
    {"loss", "#8044b8", "#a877dc"},       {"workspace", "#8b95a1", "#7d8894"},
    {"cached", "#dfe4ea", "#38424e"},     {"runtime", "#b4bcc6", "#59636f"},
    {"compute", "#3566c8", "#5b8def"},    {"exposed", "#16877a", "#37b0a1"},
    {"weightgrad", "#b7a2e3", "#5d4a93"}, {"bubble", "#f0e0bd", "#4a3d20"},
    {"transfer", "#2f9ec4", "#56b8da"},   {"tensor", "#16877a", "#37b0a1"},
    {"pipeline", "#2f9ec4", "#56b8da"},   {"context", "#8044b8", "#a877dc"},
    {"expert", "#c2476a", "#dc6f8f"},     {"data", "#d99a2b", "#dba84e"},
}};

std::string variables(bool dark) {
  std::string text;
  for (const Color& color : kColors)
    text += fmt::format("--{}:{};", color.name, dark ? color.dark : color.light);
  return text;
}

constexpr const char* kRules = R"(
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1040px;margin:0 auto;padding:28px 22px 48px}
h1{font-size:27px;line-height:1.25;margin:0 0 4px}
h2{font-size:18px;margin:0 0 10px}
h3{font-size:14px;margin:18px 0 4px}
section{margin:34px 0 0}
p{margin:6px 0}
.sub,.note{color:var(--soft)}
.note{font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px;margin-top:20px}
.tile{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:12px 14px}
.tile b{display:block;font-size:22px;line-height:1.3}
.tile span{display:block;color:var(--soft);font-size:13px}
.good b{color:var(--good)}
.bad b{color:var(--bad)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--edge);vertical-align:top}
th{color:var(--soft);font-weight:600}
tr.chosen td{font-weight:600;background:color-mix(in srgb,var(--soft) 12%,transparent)}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
ul{margin:8px 0;padding-left:20px}
li{margin:3px 0}
code{font:13px/1.5 ui-monospace,"DejaVu Sans Mono",Consolas,monospace;overflow-wrap:anywhere}
svg{display:block;width:100%;height:auto;margin:4px 0}
svg text{font-size:11px;fill:var(--ink);font-family:inherit}
svg .soft{fill:var(--soft)}
svg .strong{font-weight:600}
svg .in{fill:#fff}
svg .indark{fill:#1b1f24}
svg .grid{stroke:var(--edge);stroke-width:1}
svg .limit{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3}
svg .row{fill:var(--card)}
svg .over{fill:none;stroke:var(--bad);stroke-width:2}
svg .dot{stroke:var(--paper);stroke-width:1.5}
svg .curve{fill:none;stroke:var(--product);stroke-width:1.5}
svg .area{fill:var(--product);opacity:.18}
.legend{font-size:13px;margin:6px 0 0}
.key{display:inline-block;margin-right:16px;white-space:nowrap}
.key i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
.key b{font-weight:600;font-variant-numeric:tabular-nums}
@media screen and (max-width:720px){
 main{padding:18px 14px 36px}
 svg.wide{min-width:680px}
}
@media print{
 @page{margin:9mm}
 body{font-size:8pt;line-height:1.24;background:#fff}
 main{max-width:none;padding:0}
 h1{font-size:14pt}
 h2{font-size:10.5pt;margin-bottom:3px}
 section{margin-top:7px}
 table,.legend,.tile span{font-size:7pt}
 th,td{padding:1px 10px 1px 0}
 li{margin:1px 0}
 .tiles{grid-template-columns:repeat(4,1fr);margin-top:10px}
 .tile{padding:6px 10px}
 .tile b{font-size:13pt}
 .tile,svg,tr,li{break-inside:avoid}
 h2,h3{break-after:avoid}
 *{-webkit-print-color-adjust:exact;print-color-adjust:exact}
}
)";

}  // namespace

std::string style_sheet() {
  std::string text =
      ":root{--paper:#fff;--card:#f5f7f9;--ink:#1b1f24;--soft:#5b6570;--edge:#dde2e8;"
      "--good:#1a7f37;--bad:#c62828;" +
      variables(false) + "}\n";
  text +=
      "@media screen and (prefers-color-scheme:dark){:root{--paper:#14181d;--card:#1c2229;"
      "--ink:#e6eaef;--soft:#9aa5b1;--edge:#303944;--good:#4cc26a;--bad:#ff7b72;" +
      variables(true) + "}}\n";
  for (const Color& color : kColors) {
    text += fmt::format(".f-{0}{{fill:var(--{0})}}.b-{0}{{background:var(--{0})}}\n", color.name);
  }
  return text + kRules;
}

}  // namespace shardwright::cli::html
