// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/prices/catalog.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/terminal.h"
#include "cli/verbs/verbs.h"
#include "sim/core/base/atomic_file.h"

namespace shardwright::cli {
namespace {

std::string price_cell(const std::optional<ImportedPrice>& imported) {
  return imported ? fmt::format("{:.2f}", imported->price.usd_per_gpu_hour) : "";
}

std::string range_cell(const std::optional<ImportedPrice>& imported) {
  if (!imported) return "";
  const auto& range = imported->price.range;
  return range[0] == range[1] ? "" : fmt::format("{:.2f} to {:.2f}", range[0], range[1]);
}

class PricesVerb : public Verb {
 public:
  PricesVerb()
      : Verb("prices",
             "GPU prices of the SkyPilot catalog on this disk, as a file for size --prices") {}

  void declare_flags(Command& command) override {
    command.add("ACTION", action_, "import").required();
    command
        .add("--skypilot", paths_,
             "tables of the catalog (vms.csv), or folders of them such as ~/.sky/catalogs/v8")
        .type_name("PATH...");
    command.add_file("--out", out_, "write the prices into this file").writes();
    command
        .add("--date", date_,
             "the day that the prices are of (default: when the oldest table was "
             "written)")
        .type_name("YYYY-MM-DD");
    command.add("--json", json_, "print the document that --out writes");
  }

  ExitCode run(const Context& context) override {
    if (action_ != "import") {
      throw Error(fmt::format("shardwright prices has no action '{}'; it has import.", action_),
                  ExitCode::kUsage);
    }
    if (paths_.empty()) {
      throw Error(
          "--skypilot is missing: give tables of the SkyPilot catalog or a folder of them, "
          "such as ~/.sky/catalogs/v8.",
          ExitCode::kUsage);
    }
    if (date_ && (date_->size() != 10 || !profiles::age_days(*date_, profiles::today()))) {
      throw Error(fmt::format("--date is '{}', expected a day such as 2026-11-22", *date_));
    }
    const CatalogNames names = CatalogNames::load();
    const Catalog catalog = read_catalog(paths_, names);
    const PriceTable table = price_table(catalog, names);
    if (table.gpus.empty()) {
      throw Error(fmt::format("{}: holds no price of a GPU that ships with this program",
                              catalog.files.front()));
    }
    const std::string text = json_text(price_document(catalog, table, date_.value_or(catalog.date),
                                                      context.command_line)) +
                             "\n";
    if (!out_.empty()) write_file_atomically(out_, text);
    if (json_) {
      fmt::print(results(), "{}", text);
    } else {
      show(catalog, table, context.out);
    }
    if (!out_.empty())
      notify(fmt::format("The prices are in {0}; size --prices {0} takes them.", out_));
    return ExitCode::kDone;
  }

 private:
  void show(const Catalog& catalog, const PriceTable& prices, const Terminal& out) const {
    Table table({left(""), "on demand", right("range"), "spot", right("range"), "offers"});
    const auto add = [&](const std::vector<PriceRow>& rows) {
      for (const PriceRow& row : rows) {
        const std::size_t offers =
            (row.on_demand ? row.on_demand->offers : 0) + (row.spot ? row.spot->offers : 0);
        table.add_row({row.name, price_cell(row.on_demand), range_cell(row.on_demand),
                       price_cell(row.spot), range_cell(row.spot), offers});
      }
    };
    add(prices.gpus);
    table.add_rule();
    add(prices.clusters);
    fmt::print(results(), "{}", table.render(out));
    std::size_t marked = 0;
    for (const CatalogOffer& offer : catalog.offers) marked += offer.remark.empty() ? 0 : 1;
    std::string remarks = fmt::format(
        "USD per GPU hour; GPUs above, clusters below. {} offers of {} tables; {} of them are "
        "prices for a commitment and not counted.",
        catalog.offers.size(), catalog.files.size(), marked);
    const char* before = " Rows left out: ";
    for (const auto& [reason, rows] : catalog.left_out) {
      remarks += fmt::format("{}{} ({})", before, rows, reason);
      before = ", ";
    }
    if (!catalog.left_out.empty()) remarks += ".";
    fmt::print(results(), "{}", paragraph(remarks, out));
  }

  std::string action_, out_;
  std::vector<std::string> paths_;
  std::optional<std::string> date_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_prices_verb() {
  return std::make_unique<PricesVerb>();
}

}  // namespace shardwright::cli
