#include "perceptron.h"

#include <cmath>

namespace {

// SplitMix64, and normal numbers from it: the same on every machine, which std::normal_distribution
// does not promise.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  float Normal() {
    const double radius = std::sqrt(-2 * std::log(Uniform()));
    return static_cast<float>(radius * std::cos(6.283185307179586 * Uniform()));
  }

 private:
  double Uniform() { return (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53; }
  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

void Descend(const Matrix& grad, float learning_rate, Matrix* momentum, Matrix* parameter) {
  for (std::size_t i = 0; i < grad.values.size(); ++i) {
    momentum->values[i] = 0.9f * momentum->values[i] + grad.values[i];
    parameter->values[i] -= learning_rate * momentum->values[i];
  }
}

}  // namespace

Linear::Linear(std::size_t inputs, std::size_t outputs, std::uint64_t seed)
    : weight(outputs, inputs),
      bias(1, outputs),
      weight_grad(outputs, inputs),
      bias_grad(1, outputs),
      weight_momentum(outputs, inputs),
      bias_momentum(1, outputs) {
  Random random(seed);
  const float scale = std::sqrt(2.0f / static_cast<float>(inputs));
  for (float& w : weight.values) w = scale * random.Normal();
}

Matrix Linear::Forward(const Matrix& input) const {
  Matrix output(input.rows(), weight.rows());
  for (std::size_t sample = 0; sample < input.rows(); ++sample) {
    for (std::size_t o = 0; o < weight.rows(); ++o) {
      float sum = bias.values[o];
      for (std::size_t i = 0; i < weight.columns(); ++i)
        sum += input.row(sample)[i] * weight.row(o)[i];
      output.row(sample)[o] = sum;
    }
  }
  return output;
}

Matrix Linear::Backward(const Matrix& input, const Matrix& grad_output) {
  weight_grad = Matrix(weight.rows(), weight.columns());
  bias_grad = Matrix(1, weight.rows());
  Matrix grad_input(input.rows(), input.columns());
  for (std::size_t sample = 0; sample < input.rows(); ++sample) {
    for (std::size_t o = 0; o < weight.rows(); ++o) {
      const float grad = grad_output.row(sample)[o];
      bias_grad.values[o] += grad;
      for (std::size_t i = 0; i < weight.columns(); ++i) {
        weight_grad.row(o)[i] += grad * input.row(sample)[i];
        grad_input.row(sample)[i] += grad * weight.row(o)[i];
      }
    }
  }
  return grad_input;
}

Matrix Relu(const Matrix& input, float scale) {
  Matrix output = input;
  for (float& x : output.values) x = x > 0 ? scale * x : 0;
  return output;
}

void ReluBackward(const Matrix& input, float scale, Matrix* grad) {
  for (std::size_t i = 0; i < input.values.size(); ++i)
    grad->values[i] = input.values[i] > 0 ? scale * grad->values[i] : 0;
}

float MeanSquaredError(const Matrix& prediction, const Matrix& target, Matrix* grad) {
  *grad = prediction;
  const auto count = static_cast<float>(prediction.values.size());
  double sum = 0;
  for (std::size_t i = 0; i < prediction.values.size(); ++i) {
    const float error = prediction.values[i] - target.values[i];
    sum += static_cast<double>(error) * error;
    grad->values[i] = 2 * error / count;
  }
  return static_cast<float>(sum / count);
}

void Update(Linear* layer, float learning_rate) {
  Descend(layer->weight_grad, learning_rate, &layer->weight_momentum, &layer->weight);
  Descend(layer->bias_grad, learning_rate, &layer->bias_momentum, &layer->bias);
}

Batch MakeBatch(std::uint64_t seed, std::uint64_t batch, std::size_t samples, std::size_t inputs,
                std::size_t outputs) {
  Batch made{Matrix(samples, inputs), Matrix(samples, outputs)};
  Random random((seed << 32) + batch);
  for (float& x : made.inputs.values) x = random.Normal();
  const Linear teacher(inputs, outputs, seed + 1000);
  made.targets = teacher.Forward(made.inputs);
  for (float& y : made.targets.values) y = std::sin(y);
  return made;
}
