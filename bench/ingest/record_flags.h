// Flags of every subcommand that makes records.
#ifndef STATCOLLECT_BENCH_INGEST_RECORD_FLAGS_H_
#define STATCOLLECT_BENCH_INGEST_RECORD_FLAGS_H_

#include <cstdint>

#include <CLI/CLI.hpp>

namespace statcollect::bench {

inline void AddRecordFlags(CLI::App* command, std::uint32_t* activations, std::uint32_t* sketch,
                           double* repeat) {
  command->add_option("--activations", *activations, "Records of a rank and step")
      ->check(CLI::Range(1u, 20000u))
      ->capture_default_str();
  command->add_option("--sketch", *sketch, "Sums in a sketch")
      ->check(CLI::IsMember({0, 16, 32, 64}))
      ->capture_default_str();
  command
      ->add_option("--repeat", *repeat, "Share of activations that are bit-identical in every step")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_RECORD_FLAGS_H_
