// The list of verbs, in the order in which --help shows them.
#pragma once

#include <memory>
#include <vector>

#include "cli/verbs/verb.h"

namespace shardwright::cli {

std::vector<std::unique_ptr<Verb>> make_verbs();

std::unique_ptr<Verb> make_predict_verb();
std::unique_ptr<Verb> make_tune_verb();
std::unique_ptr<Verb> make_size_verb();
std::unique_ptr<Verb> make_run_verb();
std::unique_ptr<Verb> make_compare_verb();
std::unique_ptr<Verb> make_measure_verb();
std::unique_ptr<Verb> make_calibrate_verb();
std::unique_ptr<Verb> make_validate_verb();
std::unique_ptr<Verb> make_profile_verb();
std::unique_ptr<Verb> make_inspect_verb();
std::unique_ptr<Verb> make_export_verb();
std::unique_ptr<Verb> make_report_verb();
std::unique_ptr<Verb> make_doctor_verb();

}  // namespace shardwright::cli
