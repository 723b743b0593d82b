#include <statagent/agent.h>
#include <statagent/statagent.h>

#include <array>
#include <cstdio>
#include <cstdlib>

int main() {
  const std::array<float, 4> values = {1, 2, 3, -4};
  const std::array<std::int64_t, 1> shape = {4};
  const auto statistics =
      statagent::Compute({.data = values.data(), .dtype = statagent::DType::kF32, .shape = shape});
  if (!statistics.ok() || statistics->numel != 4 || statistics->neg != 1 || statistics->mean != 0.5)
    return 1;
  setenv("STATAGENT_DISABLE", "1", 1);
  auto agent = statagent::Agent::Start({.run = "consumer"});
  if (!agent.ok() || !(*agent)->Observe({.name = "x"}, {.data = values.data()}).ok()) return 2;
  std::printf("agent %s, sum of magnitudes %g\n", statagent_version(), statistics->l1);
  return 0;
}
