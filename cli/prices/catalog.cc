// SPDX-License-Identifier: Apache-2.0
#include "cli/prices/catalog.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "cli/prices/catalog_files.h"
#include "sim/core/base/csv.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::cli {
namespace {

constexpr double kSamePrice = 1e-5;  // 21.957642 and 21.95764 are one price
constexpr double kCommitted = 0.5;   // of the highest region's, and no more: a committed-use price
constexpr std::int64_t kMostGpus = 4096;

struct CatalogRow {
  std::size_t line = 0;
  std::string instance, accelerator, region, zone;
  std::optional<double> count, price, spot, total_mib;
};

std::optional<double> price_in(const CsvRow& row, std::string_view column, double sentinel) {
  const std::optional<double> usd = row.find<double>(column);
  if (!usd) return std::nullopt;
  if (*usd < 0 || *usd > 1e6) row.fail(column, "US dollars per hour, from 0 to 1,000,000");
  if (sentinel > 0 && *usd == sentinel) return std::nullopt;
  return usd;
}

/// The number behind a key of GpuInfo, which is a Python literal here and JSON there.
std::optional<double> number_behind(std::string_view text, std::string_view key) {
  std::size_t at = text.find(key);
  if (at == text.npos) return std::nullopt;
  at = text.find_first_of("0123456789", at + key.size());
  if (at == text.npos) return std::nullopt;
  const std::size_t end = text.find_first_not_of("0123456789.", at);
  return parse_double(text.substr(at, end == text.npos ? text.npos : end - at));
}

std::vector<CatalogRow> rows_of(const CsvTable& table, double sentinel) {
  for (const char* column : {"InstanceType", "AcceleratorName", "AcceleratorCount", "Price"})
    static_cast<void>(table.column(column));
  const auto text = [&](const CsvRow& row, const char* column) {
    return table.has_column(column) ? std::string(row.text(column)) : std::string();
  };
  std::vector<CatalogRow> rows;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const CsvRow from = table[i];
    CatalogRow& row = rows.emplace_back();
    row.line = from.line();
    row.instance = text(from, "InstanceType");
    row.accelerator = text(from, "AcceleratorName");
    row.region = text(from, "Region");
    row.zone = text(from, "AvailabilityZone");
    row.count = from.find<double>("AcceleratorCount");
    row.price = price_in(from, "Price", sentinel);
    if (table.has_column("SpotPrice")) row.spot = price_in(from, "SpotPrice", sentinel);
    row.total_mib = number_behind(text(from, "GpuInfo"), "TotalGpuMemoryInMiB");
  }
  return rows;
}

std::optional<double> sum(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b) return std::nullopt;
  return *a + *b;
}

std::optional<double> positive(const std::optional<double>& usd) {
  return usd && *usd > 0 ? usd : std::nullopt;
}

std::string commitment_of(const CatalogRow& row, double highest) {
  if (!row.price) return "";
  if (row.spot && *row.spot > *row.price * (1 + kSamePrice)) {
    return fmt::format("spot ({:.2f}) is dearer than the price ({:.2f}): it is for a commitment",
                       *row.spot, *row.price);
  }
  if (*row.price <= kCommitted * highest * (1 + kSamePrice)) {
    return fmt::format("another region asks {:.2f} instead of {:.2f}: it is for a commitment",
                       highest, *row.price);
  }
  return "";
}

/// One table of a cloud.
class CloudReader {
 public:
  CloudReader(const CatalogNames& names, std::string cloud, std::string file, Catalog& catalog)
      : names_(names), cloud_(std::move(cloud)), file_(std::move(file)), catalog_(catalog) {}

  void read(const CsvTable& table) {
    const std::string no_prices = names_.no_prices(cloud_);
    if (!no_prices.empty())
      return leave_out(fmt::format("{}: {}", cloud_, no_prices), table.size());
    const std::vector<CatalogRow> rows = rows_of(table, names_.sentinel(cloud_));
    for (const CatalogRow& row : rows) {
      if (row.accelerator.empty()) {
        hosts_[{row.instance, row.zone}] = &row;
      } else if (row.price) {
        double& highest = highest_[{row.accelerator, row.count.value_or(0)}];
        highest = std::max(highest, *row.price);
      }
    }
    for (const CatalogRow& row : rows) take(row);
  }

 private:
  void take(const CatalogRow& row) {
    if (row.accelerator.empty()) {
      if (!names_.prices_hosts_apart(cloud_)) leave_out("without a GPU");
      return;
    }
    const double count = row.count.value_or(0);
    if (count > 0 && std::floor(count) != count) return leave_out("a part of a GPU");
    if (count < 1 || count > static_cast<double>(kMostGpus)) return leave_out("no number of GPUs");
    CatalogOffer offer;
    offer.cloud = cloud_;
    offer.file = file_;
    offer.lines = {row.line};
    offer.instance = row.instance;
    offer.accelerator = row.accelerator;
    offer.count = static_cast<std::int64_t>(count);
    offer.region = row.region;
    offer.zone = row.zone;
    std::optional<double> price = row.price, spot = row.spot;
    if (names_.lists_commitments(cloud_))
      offer.remark = commitment_of(row, highest_[{row.accelerator, count}]);
    if (row.instance.empty() && !add_host(row, offer, price, spot)) return;
    price = positive(price);
    spot = positive(spot);
    if (price && spot && std::abs(*spot - *price) <= kSamePrice * *price) spot.reset();
    if (!price && !spot) return leave_out("neither price");
    if (!seen_
             .emplace(offer.instance, offer.accelerator, count, offer.region, offer.zone,
                      price.value_or(0), spot.value_or(0))
             .second)
      return leave_out("the same row again");
    if (price) offer.on_demand = *price / count;
    if (spot) offer.spot = *spot / count;
    name(row, offer);
    catalog_.offers.push_back(std::move(offer));
  }

  /// Adds the host that the GPUs of `row` are plugged into. False: left out.
  bool add_host(const CatalogRow& row, CatalogOffer& offer, std::optional<double>& price,
                std::optional<double>& spot) {
    if (row.accelerator.starts_with("tpu")) return true;  // a whole slice
    const std::optional<std::string> name = names_.host_of(cloud_, row.accelerator, offer.count);
    const auto host = name ? hosts_.find({*name, row.zone}) : hosts_.end();
    if (host == hosts_.end()) {
      leave_out("a GPU without its host");
      return false;
    }
    offer.instance = *name;
    offer.lines.insert(offer.lines.begin(), host->second->line);
    price = sum(price, host->second->price);
    spot = sum(spot, host->second->spot);
    return true;
  }

  void name(const CatalogRow& row, CatalogOffer& offer) const {
    CatalogMachine machine{cloud_, offer.instance, offer.accelerator, offer.count, std::nullopt};
    if (names_.tells_memory(cloud_) && row.total_mib)
      machine.gpu_memory_mib = *row.total_mib / static_cast<double>(offer.count);
    offer.gpu = names_.gpu_of(machine);
    offer.cluster = names_.cluster_of(machine);
  }

  void leave_out(const std::string& reason, std::size_t rows = 1) {
    catalog_.left_out[reason] += static_cast<std::int64_t>(rows);
  }

  const CatalogNames& names_;
  std::string cloud_, file_;
  Catalog& catalog_;
  std::map<std::pair<std::string, std::string>, const CatalogRow*> hosts_;  // instance, zone
  std::map<std::pair<std::string, double>, double> highest_;  // accelerator, count: its price
  std::set<std::tuple<std::string, std::string, double, std::string, std::string, double, double>>
      seen_;
};

/// A user's own prices per accelerator (slurm/pricing.csv); zeros are the default and say nothing.
void read_pricing(const CsvTable& table, const std::string& cloud, const std::string& file,
                  const CatalogNames& names, Catalog& catalog) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    const CsvRow row = table[i];
    CatalogOffer offer;
    offer.cloud = cloud;
    offer.file = file;
    offer.lines = {row.line()};
    offer.accelerator = std::string(row.text("AcceleratorName"));
    offer.count = 1;
    offer.region = table.has_column("Region") ? std::string(row.text("Region")) : "";
    offer.zone = table.has_column("Zone") ? std::string(row.text("Zone")) : "";
    offer.on_demand = positive(price_in(row, "PricePerAccelerator", 0));
    if (!offer.on_demand) {
      ++catalog.left_out["neither price"];
    } else if (offer.accelerator.empty()) {
      ++catalog.left_out["a price for no GPU in particular"];
    } else {
      offer.gpu = names.gpu_of({cloud, "", offer.accelerator, 1, std::nullopt});
      catalog.offers.push_back(std::move(offer));
    }
  }
}

}  // namespace

Catalog read_catalog(const std::vector<std::string>& paths, const CatalogNames& names) {
  Catalog catalog;
  std::optional<std::chrono::sys_days> oldest;
  for (const CatalogFile& file : catalog_files(paths)) {
    const CsvTable table = CsvTable::load(file.path);
    const std::string shown = file.path.string();
    if (table.has_column("PricePerAccelerator")) {
      read_pricing(table, file.cloud, shown, names, catalog);
    } else {
      CloudReader(names, file.cloud, shown, catalog).read(table);
    }
    catalog.files.push_back(shown);
    if (!oldest || file.written < *oldest) oldest = file.written;
  }
  if (oldest) {
    const std::chrono::year_month_day day(*oldest);
    catalog.date =
        fmt::format("{:04}-{:02}-{:02}", static_cast<int>(day.year()),
                    static_cast<unsigned>(day.month()), static_cast<unsigned>(day.day()));
  }
  return catalog;
}

}  // namespace shardwright::cli
