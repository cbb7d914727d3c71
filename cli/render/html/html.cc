// SPDX-License-Identifier: Apache-2.0
#include "cli/render/html/html.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cli/render/html/style.h"
#include "cli/text.h"

namespace shardwright::cli::html {
namespace {

std::string class_attribute(std::string_view style) {
  return style.empty() ? "" : fmt::format(" class=\"{}\"", style);
}

}  // namespace

std::string escape(std::string_view text) {
  std::string safe;
  for (const char c : printable(text, true)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string element(std::string_view tag, std::string_view text, std::string_view style) {
  return fmt::format("<{0}{1}>{2}</{0}>\n", tag, class_attribute(style), escape(text));
}

std::string section(std::string_view title, std::string_view body) {
  if (body.empty()) return "";
  return fmt::format("<section>\n{}{}</section>\n", element("h2", title), body);
}

std::string table(const std::vector<std::string>& head,
                  const std::vector<std::vector<std::string>>& rows, std::size_t first_number,
                  const std::vector<std::size_t>& marked) {
  if (rows.empty()) return "";
  const auto row = [&](const std::vector<std::string>& cells, std::string_view tag,
                       std::string_view style = "") {
    std::string text = fmt::format("<tr{}>", class_attribute(style));
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += fmt::format("<{0}{1}>{2}</{0}>", tag, i < first_number ? "" : " class=\"number\"",
                          escape(cells[i]));
    }
    return text + "</tr>\n";
  };
  std::string text = "<div class=\"scroll\"><table>\n";
  if (!head.empty()) text += "<thead>" + row(head, "th") + "</thead>\n";
  text += "<tbody>\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool mark = std::find(marked.begin(), marked.end(), i) != marked.end();
    text += row(rows[i], "td", mark ? "chosen" : "");
  }
  return text + "</tbody></table></div>\n";
}

std::string list(const std::vector<std::string>& sentences) {
  if (sentences.empty()) return "";
  std::string text = "<ul>\n";
  for (const std::string& sentence : sentences) text += element("li", sentence);
  return text + "</ul>\n";
}

std::string svg(double width, double height, std::string_view label, std::string_view body) {
  constexpr double kTall = 80;  // a bar stays legible on a phone, a drawing scrolls
  return fmt::format(
      "<div class=\"scroll\"><svg{} viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"{}\">\n{}</svg></div>\n",
      class_attribute(height > kTall ? "wide" : ""), width, std::ceil(height), escape(label), body);
}

std::string rect(double x, double y, double width, double height, std::string_view style,
                 std::string_view tip) {
  const std::string shape =
      fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"{}", x, y,
                  width, height, class_attribute(style));
  if (tip.empty()) return shape + "/>\n";
  return fmt::format("{}><title>{}</title></rect>\n", shape, escape(tip));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\"{}/>\n", x1, y1,
                     x2, y2, class_attribute(style));
}

std::string text(double x, double y, std::string_view words, std::string_view anchor,
                 std::string_view style) {
  return fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, class_attribute(style), escape(words));
}

std::string legend(const std::vector<Key>& keys) {
  if (keys.empty()) return "";
  std::string text = "<p class=\"legend\">\n";
  for (const Key& key : keys) {
    text += fmt::format("<span class=\"key\"><i class=\"b-{}\"></i>{}{}</span>\n", key.style,
                        escape(key.name),
                        key.value.empty() ? "" : fmt::format(" <b>{}</b>", escape(key.value)));
  }
  return text + "</p>\n";
}

std::vector<double> ticks(double end, int count) {
  if (!(end > 0) || count < 1) return {0};
  const double rough = end / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> at;
  for (int i = 0; i * step <= end * (1 + 1e-9); ++i) at.push_back(i * step);
  return at;
}

double text_width(std::string_view words) {
  constexpr double kPerCharacter = 5.9;
  return kPerCharacter * display_width(words);
}

std::string page(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light dark\"/>\n"
      "<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n"
      "</html>\n",
      escape(title), style_sheet(), body);
}

}  // namespace shardwright::cli::html
