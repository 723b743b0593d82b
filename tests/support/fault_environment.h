// Seed and length of randomised fault tests: the environment chooses, and the log says what it was.
#ifndef STATCOLLECT_TESTS_SUPPORT_FAULT_ENVIRONMENT_H_
#define STATCOLLECT_TESTS_SUPPORT_FAULT_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace statcollect::testing {

inline std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 0);
}

// STATCOLLECT_FAULT_SEED repeats a run; otherwise every run is different.
inline std::uint64_t FaultSeed() {
  static const std::uint64_t seed = [] {
    const std::uint64_t chosen = FromEnvironment("STATCOLLECT_FAULT_SEED", std::random_device()());
    std::cout << "STATCOLLECT_FAULT_SEED=" << chosen << std::endl;
    return chosen;
  }();
  return seed;
}

// STATCOLLECT_FAULT_ROUNDS asks for the long form.
inline std::uint64_t FaultRounds(std::uint64_t short_form) {
  return FromEnvironment("STATCOLLECT_FAULT_ROUNDS", short_form);
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_FAULT_ENVIRONMENT_H_
