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
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/prices/catalog_names.h"

namespace shardwright::cli {

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

}  // namespace shardwright::cli
