// `shardwright report`: a plan, its prediction and a measurement as one self-contained HTML file.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_report_verb();

}  // namespace shardwright::cli
