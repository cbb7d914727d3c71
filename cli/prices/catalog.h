// SPDX-License-Identifier: Apache-2.0
// Offers of machines with GPUs, read from the tables of the SkyPilot catalog that users have on
// disk
// (~/.sky/catalogs/v8/CLOUD/vms.csv; pricing.csv of slurm).
//
// Columns are found by name, because no two clouds agree on their order. What the tables mean by
// their numbers is not one thing either; these are the rules:
//
// * prices are of the whole row, in USD per hour; an offer says them per GPU;
// * empty, 0 and a cloud's sentinel (700 at gcp) say "not sold here", and a spot price that equals
//   the price says that there is none;
// * a cloud that prices hosts apart (gcp) sells a machine as two rows of one zone, which are added;
//   a spot price needs both;
// * such a cloud also lists prices for a commitment of years among those on demand: where spot is
//   dearer, or another region asks at least twice as much, the price is marked and not counted;
// * a count that is no whole number is a part of a GPU, which trains nothing.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/prices/price.h"

namespace shardwright::cli {

// How the SkyPilot catalog calls what this project knows: profiles/data/skypilot.json.
//
// Accelerator names are the clouds' own and mean different cards in different clouds ("A100-80GB"
// is the PCIe card at one and the SXM card at the others), so each entry may be tied to a cloud, to
// names of machines and to the memory of one GPU; the first that applies counts. A name that no
// entry maps is left out rather than guessed. '*' in a pattern stands for any letters.

struct CatalogMachine {
  std::string cloud, instance, accelerator;
  std::int64_t count = 0;                // GPUs of the machine
  std::optional<double> gpu_memory_mib;  // of one GPU, where the cloud says it rightly
};

struct CatalogCloud {
  std::string no_prices;           // why its numbers are no prices; empty where they are
  double sentinel = 0;             // in a price column for "not sold here"; 0: nothing is
  bool lists_commitments = false;  // prices for a commitment are among those on demand
  bool tells_memory = false;       // GpuInfo holds the memory of all GPUs of the machine
};

class CatalogNames {
 public:
  /// The shipped file. Throws Error.
  static CatalogNames load();

  /// The shipped GPU, or "" for one that this project does not know or cannot tell.
  std::string gpu_of(const CatalogMachine& machine) const;
  /// What most clouds call a shipped GPU; "" where none has it.
  std::string accelerator_of(std::string_view gpu) const;
  /// The shipped cluster that is made of such machines, or "".
  std::string cluster_of(const CatalogMachine& machine) const;
  /// Whether the cluster is one provider's own, so that others' prices say nothing of it.
  bool has_provider(std::string_view cluster) const;
  /// Of a cloud that prices hosts and GPUs apart: the name of the host of `count` such GPUs.
  std::optional<std::string> host_of(std::string_view cloud, std::string_view accelerator,
                                     std::int64_t count) const;
  bool prices_hosts_apart(std::string_view cloud) const;
  /// Of a cloud of which nothing is said, the usual.
  CatalogCloud cloud_named(std::string_view name) const;

 private:
  struct Gpu {
    std::string cloud, accelerator, instance, gpu;
    std::optional<double> least_mib, most_mib;
  };
  struct OwnCluster {
    std::string cloud, instance, cluster;
  };
  struct Host {
    std::string cloud, instance, accelerator;  // instance holds {n}
    std::int64_t count = 0;                    // 0: any
  };
  std::vector<Gpu> gpus_;
  std::vector<OwnCluster> clusters_;
  std::vector<Host> hosts_;
  std::map<std::string, CatalogCloud, std::less<>> clouds_;
};

struct CatalogOffer {
  std::string cloud, file;
  std::vector<std::size_t> lines;  // of the file, from 1
  std::string instance, accelerator;
  std::int64_t count = 0;
  std::string region, zone;
  std::optional<double> on_demand, spot;  // USD per GPU hour
  std::string remark;                     // why `on_demand` does not count; empty: it does
  std::string gpu, cluster;               // as shipped; empty: none that ships
};

struct Catalog {
  std::vector<CatalogOffer> offers;              // by file, then by line
  std::map<std::string, std::int64_t> left_out;  // rows, by the reason
  std::vector<std::string> files;
  std::string date;  // the day when the oldest of the files was written: "2026-11-22"
};

/// Files and folders; a folder stands for every vms.csv and pricing.csv below it, of the newest
/// version of the catalog (v7, v8, ..) of each cloud. Throws Error naming file, line and column.
Catalog read_catalog(const std::vector<std::string>& paths, const CatalogNames& names);

// One price for each GPU and each cluster out of many offers, as a file that `size --prices` reads
// (profiles/prices/price.h).
//
// A cloud lists one machine in every region and zone, so offers are not votes: the price of a cloud
// is the median over its regions, that of a region the median over its zones, and the price of a
// GPU the median over clouds. A cluster that is one provider's own (p5) gets the prices of that
// provider's machine alone; every other shipped cluster gets those of its GPU, of machines with as
// many GPUs as its nodes where any are offered. The range is the middle half of the prices it is
// the median of, or the lowest and highest where they are fewer than four.

struct ImportedPrice {
  profiles::Price price;
  std::size_t offers = 0;
};

struct PriceRow {
  std::string name;  // of the cluster or GPU
  std::optional<ImportedPrice> on_demand, spot;
};

struct PriceTable {
  std::vector<PriceRow> clusters, gpus;  // those with a price, in alphabetical order
};

PriceTable price_table(const Catalog& catalog, const CatalogNames& names);

/// The document "shardwright.prices/1.0". `command` may be empty.
nlohmann::ordered_json price_document(const Catalog& catalog, const PriceTable& table,
                                      const std::string& date, const std::string& command);

}  // namespace shardwright::cli
