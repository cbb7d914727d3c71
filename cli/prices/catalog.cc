// SPDX-License-Identifier: Apache-2.0
#include "cli/prices/catalog.h"

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "sim/core/base/csv.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/numbers.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::cli {

namespace {

bool applies(const std::string& cloud, std::string_view of) {
  return cloud.empty() || cloud == of;
}

/// '*' stands for any letters; the whole word must match.
bool matches_pattern(std::string_view pattern, std::string_view word) {
  std::size_t p = 0, w = 0, star = std::string_view::npos, resume = 0;
  while (w < word.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = w;
    } else if (p < pattern.size() && pattern[p] == word[w]) {
      ++p, ++w;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      w = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

CatalogNames CatalogNames::load() {
  const JsonFile document = JsonFile::load(profiles::data_dir() / "skypilot.json");
  const JsonReader root = document.root();
  require_schema(root, "shardwright.skypilot_names", 1);
  CatalogNames names;
  const auto text = [](const JsonReader& from, const char* key) {
    return from.find<std::string>(key).value_or("");
  };
  for (const JsonReader& entry : root.require_array("clouds")) {
    names.clouds_[entry.require<std::string>("cloud")] = {
        text(entry, "no_prices"), entry.optional<double>("sentinel", 0),
        entry.optional<bool>("lists_commitments", false),
        entry.optional<bool>("tells_memory", false)};
  }
  for (const JsonReader& entry : root.require_array("gpus")) {
    names.gpus_.push_back({text(entry, "cloud"), entry.require<std::string>("accelerator"),
                           text(entry, "instance"), text(entry, "gpu"),
                           entry.find<double>("least_mib"), entry.find<double>("most_mib")});
  }
  for (const JsonReader& entry : root.require_array("clusters")) {
    names.clusters_.push_back({text(entry, "cloud"), entry.require<std::string>("instance"),
                               entry.require<std::string>("cluster")});
  }
  for (const JsonReader& entry : root.require_array("hosts")) {
    names.hosts_.push_back(
        {entry.require<std::string>("cloud"), entry.require<std::string>("instance"),
         entry.require<std::string>("accelerator"), entry.optional<std::int64_t>("count", 0)});
  }
  return names;
}

std::string CatalogNames::gpu_of(const CatalogMachine& machine) const {
  for (const Gpu& gpu : gpus_) {
    if (gpu.accelerator != machine.accelerator || !applies(gpu.cloud, machine.cloud)) continue;
    if (!gpu.instance.empty() && !matches_pattern(gpu.instance, machine.instance)) continue;
    if (gpu.least_mib && machine.gpu_memory_mib.value_or(0) < *gpu.least_mib) continue;
    if (gpu.most_mib && machine.gpu_memory_mib.value_or(*gpu.most_mib + 1) > *gpu.most_mib)
      continue;
    return gpu.gpu;
  }
  return "";
}

std::string CatalogNames::accelerator_of(std::string_view gpu) const {
  const auto at = std::find_if(gpus_.begin(), gpus_.end(), [&](const Gpu& entry) {
    return entry.cloud.empty() && entry.gpu == gpu;
  });
  return at == gpus_.end() ? "" : at->accelerator;
}

std::string CatalogNames::cluster_of(const CatalogMachine& machine) const {
  const auto at = std::find_if(clusters_.begin(), clusters_.end(), [&](const OwnCluster& own) {
    return applies(own.cloud, machine.cloud) && matches_pattern(own.instance, machine.instance);
  });
  return at == clusters_.end() ? "" : at->cluster;
}

bool CatalogNames::has_provider(std::string_view cluster) const {
  return std::any_of(clusters_.begin(), clusters_.end(),
                     [&](const OwnCluster& own) { return own.cluster == cluster; });
}

std::optional<std::string> CatalogNames::host_of(std::string_view cloud,
                                                 std::string_view accelerator,
                                                 std::int64_t count) const {
  for (const Host& host : hosts_) {
    if (host.cloud != cloud || host.accelerator != accelerator) continue;
    if (host.count != 0 && host.count != count) continue;
    std::string name = host.instance;
    const std::size_t at = name.find("{n}");
    if (at != std::string::npos) name.replace(at, 3, fmt::format("{}", count));
    return name;
  }
  return std::nullopt;
}

bool CatalogNames::prices_hosts_apart(std::string_view cloud) const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [&](const Host& host) { return host.cloud == cloud; });
}

CatalogCloud CatalogNames::cloud_named(std::string_view name) const {
  const auto at = clouds_.find(name);
  return at == clouds_.end() ? CatalogCloud{} : at->second;
}

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
      : names_(names),
        cloud_(std::move(cloud)),
        rules_(names.cloud_named(cloud_)),
        file_(std::move(file)),
        catalog_(catalog) {}

  void read(const CsvTable& table) {
    if (!rules_.no_prices.empty())
      return leave_out(fmt::format("{}: {}", cloud_, rules_.no_prices), table.size());
    const std::vector<CatalogRow> rows = rows_of(table, rules_.sentinel);
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
    if (rules_.lists_commitments)
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
    if (rules_.tells_memory && row.total_mib)
      machine.gpu_memory_mib = *row.total_mib / static_cast<double>(offer.count);
    offer.gpu = names_.gpu_of(machine);
    offer.cluster = names_.cluster_of(machine);
  }

  void leave_out(const std::string& reason, std::size_t rows = 1) {
    catalog_.left_out[reason] += static_cast<std::int64_t>(rows);
  }

  const CatalogNames& names_;
  std::string cloud_;
  CatalogCloud rules_;
  std::string file_;
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

namespace fs = std::filesystem;

/// The tables behind what stands on the command line.
struct CatalogFile {
  fs::path path;
  std::string cloud;  // the folder that vms.csv is in, else the file's name
  std::chrono::sys_days written;
};

bool is_table(const fs::path& path) {
  return path.filename() == "vms.csv" || path.filename() == "pricing.csv";
}

CatalogFile file_at(const fs::path& path) {
  CatalogFile file;
  file.path = path;
  const fs::path folder = fs::absolute(path).parent_path().filename();
  file.cloud = is_table(path) && !folder.empty() ? folder.string() : path.stem().string();
  struct stat status = {};
  const bool known = ::stat(path.c_str(), &status) == 0;
  const std::chrono::sys_seconds time(std::chrono::seconds(known ? status.st_mtime : 0));
  file.written = std::chrono::floor<std::chrono::days>(time);
  return file;
}

/// 8 of ".../v8/aws/vms.csv"; 0 where no version is in the path.
std::int64_t version_of(const fs::path& path) {
  const std::string name = path.parent_path().parent_path().filename().string();
  if (name.size() < 2 || name[0] != 'v') return 0;
  return parse_int64(std::string_view(name).substr(1)).value_or(0);
}

std::vector<CatalogFile> files_below(const fs::path& folder) {
  std::map<std::pair<std::string, std::string>, fs::path> newest;  // by cloud and name
  std::error_code problem;
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied,
                                      problem);
  for (; !problem && at != fs::recursive_directory_iterator(); at.increment(problem)) {
    if (at.depth() > 4) at.disable_recursion_pending();
    if (!is_table(at->path())) continue;
    const std::string cloud = file_at(at->path()).cloud;
    fs::path& known = newest[{cloud, at->path().filename().string()}];
    if (known.empty() || version_of(at->path()) > version_of(known)) known = at->path();
  }
  if (newest.empty()) {
    throw Error(
        fmt::format("{}: holds no vms.csv, expected a folder of the SkyPilot catalog such "
                    "as ~/.sky/catalogs/v8",
                    folder.string()));
  }
  std::vector<CatalogFile> files;
  for (const auto& [key, path] : newest) files.push_back(file_at(path));
  return files;
}

/// In the order of the paths, of a folder by cloud. Throws Error for a folder without tables.
std::vector<CatalogFile> catalog_files(const std::vector<std::string>& paths) {
  std::vector<CatalogFile> files;
  for (const std::string& path : paths) {
    std::error_code problem;
    if (fs::is_directory(path, problem)) {
      for (CatalogFile& file : files_below(path)) files.push_back(std::move(file));
    } else {
      files.push_back(file_at(path));
    }
  }
  return files;
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

namespace {

using Json = nlohmann::ordered_json;
using Offers = std::vector<const CatalogOffer*>;
using profiles::PriceKind;

std::optional<double> price_of(const CatalogOffer& offer, PriceKind kind) {
  if (kind == PriceKind::kSpot) return offer.spot;
  return offer.remark.empty() ? offer.on_demand : std::nullopt;
}

std::optional<ImportedPrice> imported(const Offers& offers, PriceKind kind) {
  std::map<std::string, std::map<std::string, std::vector<double>>> by_cloud;
  std::size_t count = 0;
  for (const CatalogOffer* offer : offers) {
    const std::optional<double> usd = price_of(*offer, kind);
    if (!usd) continue;
    by_cloud[offer->cloud][offer->region].push_back(*usd);
    ++count;
  }
  if (by_cloud.empty()) return std::nullopt;
  std::vector<double> of_clouds, of_regions;
  std::vector<std::string> clouds;
  for (const auto& [cloud, regions] : by_cloud) {
    of_regions.clear();
    for (const auto& [region, prices] : regions) of_regions.push_back(quantile(prices, 0.5));
    of_clouds.push_back(quantile(of_regions, 0.5));
    clouds.push_back(cloud);
  }
  const bool one = of_clouds.size() == 1;
  const std::vector<double>& prices = one ? of_regions : of_clouds;
  const bool few = prices.size() < 4;
  ImportedPrice result;
  result.offers = count;
  result.price.usd_per_gpu_hour = quantile(prices, 0.5);
  result.price.range = {quantile(prices, few ? 0 : 0.25), quantile(prices, few ? 1 : 0.75)};
  result.price.range_source = few ? "the lowest and highest of them" : "the middle half of them";
  result.price.origin.source = one ? fmt::format("{}, median of {} of the SkyPilot catalog",
                                                 clouds.front(), counted(prices.size(), "region"))
                                   : fmt::format("median of {} clouds of the SkyPilot catalog ({})",
                                                 clouds.size(), fmt::join(clouds, ", "));
  return result;
}

void add_row(const std::string& name, const Offers& offers, std::vector<PriceRow>& rows) {
  PriceRow row{name, imported(offers, PriceKind::kOnDemand), imported(offers, PriceKind::kSpot)};
  if (row.on_demand || row.spot) rows.push_back(std::move(row));
}

/// Whole nodes where any are on offer.
Offers like_nodes(const Offers& offers, std::int64_t gpus_per_node) {
  Offers nodes;
  std::copy_if(offers.begin(), offers.end(), std::back_inserter(nodes),
               [&](const CatalogOffer* offer) { return offer->count == gpus_per_node; });
  return nodes.empty() ? offers : nodes;
}

Json prices_json(const std::vector<PriceRow>& rows) {
  Json result = Json::object();
  const auto entry = [](const ImportedPrice& from) {
    return Json{{"usd_per_gpu_hour", from.price.usd_per_gpu_hour},
                {"range", from.price.range},
                {"range_source", from.price.range_source},
                {"source", from.price.origin.source}};
  };
  for (const PriceRow& row : rows) {
    Json& of = result[row.name];
    if (row.on_demand) of["on-demand"] = entry(*row.on_demand);
    if (row.spot) of["spot"] = entry(*row.spot);
  }
  return result;
}

Json offer_json(const CatalogOffer& offer) {
  Json json{{"cloud", offer.cloud},
            {"instance", offer.instance},
            {"accelerator", offer.accelerator},
            {"count", offer.count},
            {"region", offer.region},
            {"zone", offer.zone},
            {"gpu", text_or_null(offer.gpu)},
            {"on_demand_usd_per_gpu_hour", or_null(offer.on_demand)},
            {"spot_usd_per_gpu_hour", or_null(offer.spot)},
            {"lines", offer.lines}};
  if (!offer.remark.empty()) json["not_counted"] = offer.remark;
  return json;
}

}  // namespace

PriceTable price_table(const Catalog& catalog, const CatalogNames& names) {
  std::map<std::string, Offers> by_gpu, by_cluster;
  for (const CatalogOffer& offer : catalog.offers) {
    if (!offer.gpu.empty()) by_gpu[offer.gpu].push_back(&offer);
    if (!offer.cluster.empty()) by_cluster[offer.cluster].push_back(&offer);
  }
  PriceTable table;
  for (const auto& [gpu, offers] : by_gpu) add_row(gpu, offers, table.gpus);
  for (const std::string& name : profiles::shipped_names(profiles::DataKind::kCluster)) {
    if (names.has_provider(name)) {
      if (const auto own = by_cluster.find(name); own != by_cluster.end())
        add_row(name, own->second, table.clusters);
      continue;
    }
    const Cluster cluster = profiles::load_cluster(name).cluster;
    const auto offers = by_gpu.find(cluster.gpu.id);
    if (offers == by_gpu.end()) continue;
    add_row(name, like_nodes(offers->second, cluster.gpus_per_node), table.clusters);
  }
  return table;
}

Json price_document(const Catalog& catalog, const PriceTable& table, const std::string& date,
                    const std::string& command) {
  Json document{{"schema", "shardwright.prices/1.0"}, {"date", date}};
  if (!command.empty()) document["command"] = command;
  document["clusters"] = prices_json(table.clusters);
  document["gpus"] = prices_json(table.gpus);
  document["left_out"] = catalog.left_out;
  document["files"] = catalog.files;
  document["offers"] = json_list(catalog.offers, offer_json);
  return document;
}

}  // namespace shardwright::cli
