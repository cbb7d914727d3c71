// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/calibration.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/text.h"
#include "profiles/fields.h"
#include "profiles/profile.h"

namespace shardwright::cli {
namespace {

using profiles::CalibratedGroup;
using profiles::CostGroup;

/// A value in the unit of its path.
class Units {
 public:
  explicit Units(const profiles::Profile& profile) : copy_(profile) {
    const profiles::FieldList fields = profiles::fields_of(copy_);
    for (const profiles::Field& field : fields.fields()) units_[field.path] = field.unit;
  }
  std::string text(const std::string& path, double value) const {
    const auto at = units_.find(path);
    return quantity(value, at != units_.end() ? at->second : "");
  }

 private:
  profiles::Profile copy_;
  std::map<std::string, std::string_view> units_;
};

/// A measured time near nothing makes a relative error of any size, which says nothing.
std::string error_text(double mape) {
  return mape > 10 ? "> 1000 %" : percent(mape);
}

std::string plus_minus(double log_width) {
  return percent(std::expm1(log_width));
}

/// The 95 % interval as a share of the value, or as a factor where it is wide.
std::string interval_around(const sim::FittedValue& value, const Units& units) {
  if (!(value.low > 0)) return fmt::format("0 to {}", units.text(value.path, value.high));
  const double factor = std::max(value.high / value.after, value.after / value.low);
  return factor < 1.5 ? fmt::format("+- {}", percent(factor - 1))
                      : fmt::format("x or / {:.2g}", factor);
}

std::string moved_table(const CalibrationReport& report, const Terminal& terminal) {
  const Units units(report.result.profile);
  Table table({{"value"},
               {"before", Align::kRight},
               {"after", Align::kRight},
               {"95 % within", Align::kRight},
               {"operations", Align::kRight}});
  bool any = false;
  for (const sim::GroupFit& fit : report.result.groups) {
    for (const sim::FittedValue& value : fit.values) {
      if (!value.determined) continue;
      any = true;
      table.add_row({value.path, units.text(value.path, value.before),
                     units.text(value.path, value.after), interval_around(value, units),
                     thousands(static_cast<double>(value.rows))});
    }
  }
  return any ? table.render(terminal) : "Nothing was determined: no value differs from the base.\n";
}

std::string error_table(const CalibrationReport& report, const Terminal& terminal) {
  Table table({{"group"},
               {"operations", Align::kRight},
               {"timings", Align::kRight},
               {"before", Align::kRight},
               {"in sample", Align::kRight},
               {"held out", Align::kRight},
               {"total within", Align::kRight}});
  for (const sim::GroupFit& fit : report.result.groups) {
    const CalibratedGroup& errors = fit.errors;
    if (errors.rows == 0) continue;
    table.add_row({std::string(name_of(fit.group)), thousands(static_cast<double>(errors.rows)),
                   thousands(static_cast<double>(errors.observations)),
                   error_text(errors.before.mape), error_text(errors.in_sample.mape),
                   errors.held_out.n > 0 ? error_text(errors.held_out.mape) : "",
                   errors.half_width > 0 ? plus_minus(errors.half_width) : ""});
  }
  return table.render(terminal);
}

std::string undetermined(const CalibrationReport& report, const Terminal& terminal) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const sim::GroupFit& fit : report.result.groups) {
    if (fit.errors.rows == 0) {
      if (fit.group != CostGroup::kContention) {
        by_reason["not measured at all"].push_back(std::string(name_of(fit.group)));
      }
      continue;
    }
    for (const sim::FittedValue& value : fit.values) {
      if (!value.determined && value.rows > 0) by_reason[value.why_not].push_back(value.path);
    }
  }
  std::string text;
  for (const auto& [reason, paths] : by_reason) {
    text += paragraph(fmt::format("  {}: {}.", reason, fmt::join(paths, ", ")), terminal, "    ");
  }
  return text.empty() ? "" : heading(terminal, "Not determined, and as in the base") + text;
}

/// The largest by time.
std::string left_out(const CalibrationReport& report, const Terminal& terminal) {
  std::vector<profiles::LeftOut> all = report.set.left_out;
  all.insert(all.end(), report.rows_left_out.begin(), report.rows_left_out.end());
  all.insert(all.end(), report.result.left_out.begin(), report.result.left_out.end());
  if (all.empty()) return "";
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  Table table({{"left out"}, {"times", Align::kRight}, {"share of the time", Align::kRight}});
  constexpr std::size_t kShown = 8;
  double rest_seconds = 0, rest_count = 0;
  const auto share = [&](double seconds) {
    return report.set.kernel_seconds > 0 ? percent(seconds / report.set.kernel_seconds) : "";
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i >= kShown) {
      rest_seconds += all[i].seconds;
      rest_count += static_cast<double>(all[i].count);
      continue;
    }
    table.add_row({shorten(all[i].what, 64, terminal.utf8),
                   thousands(static_cast<double>(all[i].count)), share(all[i].seconds)});
  }
  if (rest_count > 0) {
    table.add_row({fmt::format("{} other kinds", all.size() - kShown), thousands(rest_count),
                   share(rest_seconds)});
  }
  return "\n" + table.render(terminal);
}

std::string next_sentence(const CalibrationReport& report) {
  const sim::NextMeasurement& next = report.next;
  if (next.what.empty() || !(next.before > 0)) return "";
  constexpr double kLevel = 1.645;  // 90 % of a normal distribution
  return fmt::format(
      "The one measurement that would help most: {}. The values' uncertainty leaves the time of {} "
      "uncertain by {}; with it {}. Of that uncertainty, {} comes from {}.",
      next.what, report.asked_of.empty() ? "these operations" : report.asked_of,
      plus_minus(kLevel * next.before), plus_minus(kLevel * next.after),
      percent(next.group_share, 0), name_of(next.group));
}

}  // namespace

std::string calibration_text(const CalibrationReport& report, const Terminal& terminal) {
  std::int64_t timings = 0;
  for (const auto& row : report.result.rows) timings += row.count;
  std::string text =
      paragraph(fmt::format("{} against {}: {} timings of {} distinct operations.", report.base,
                            report.set.sources.empty() ? "what other profiles were fitted to"
                            : report.set.sources.size() == 1
                                ? report.set.sources.front().file
                                : fmt::format("{} files", report.set.sources.size()),
                            thousands(static_cast<double>(timings)),
                            thousands(static_cast<double>(report.result.rows.size()))),
                terminal);
  for (const std::string& note : report.set.notes) text += paragraph(note, terminal);
  if (!report.facts.empty()) {
    std::vector<std::string> paths;
    for (const auto& fact : report.facts) paths.push_back(fact.path);
    text += paragraph(fmt::format("The machine itself, as it says: {}.", fmt::join(paths, ", ")),
                      terminal);
  }
  text += "\n" + moved_table(report, terminal);
  text += "\n" + error_table(report, terminal);
  text += undetermined(report, terminal);
  text += left_out(report, terminal);
  const std::string next = next_sentence(report);
  if (!next.empty()) text += "\n" + paragraph(next, terminal);
  if (!report.out.empty()) {
    text += fmt::format("\n{0} is written; `shardwright predict --cluster {0} ...` uses it.\n",
                        report.out);
  }
  return text;
}

std::string drift_text(const sim::Drift& drift, const std::string& profile,
                       const Terminal& terminal) {
  Table table({{"group"},
               {"operations", Align::kRight},
               {"measured / predicted", Align::kRight},
               {"usual", Align::kRight},
               {"known operations", Align::kRight},
               {"now / then", Align::kRight},
               {""}});
  const auto factor = [](double log) { return fmt::format("{:.3f}", std::exp(log)); };
  std::string text;
  for (const sim::GroupDrift& group : drift.groups) {
    table.add_row({std::string(name_of(group.group)), thousands(static_cast<double>(group.rows)),
                   factor(group.median),
                   fmt::format("{} to {}", factor(group.low), factor(group.high)),
                   thousands(static_cast<double>(group.same_rows)),
                   group.same_rows > 0 ? factor(group.same_median) : "",
                   group.drifted ? Cell("changed", Style::kRed) : Cell("holds", Style::kGreen)});
  }
  if (!drift.groups.empty()) text += table.render(terminal);
  for (const std::string& change : drift.changes) {
    text += paragraph(fmt::format("Since {} was made {}.", profile, change), terminal);
  }
  if (drift.groups.empty()) {
    text += paragraph(
        fmt::format("{} was not calibrated in anything that these files measure.", profile),
        terminal);
  } else if (drift.any()) {
    text += paragraph(
        fmt::format("{} no longer describes this machine: calibrate it anew.", profile), terminal);
  } else {
    text += paragraph(fmt::format("{} still holds.", profile), terminal);
  }
  return text;
}

}  // namespace shardwright::cli
