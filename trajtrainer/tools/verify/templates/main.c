#include <stdio.h>
#include <string.h>
#include "<<file>>"
int main(void) {
  static policy_<<name>>_workspace workspace;
  static float in[<<(sizes.observations | sum) + sizes.mask>> + 2 + POLICY_<<name | upper>>_RANDOM], memory[POLICY_<<name | upper>>_MEMORY + 1];
  static float continuous[POLICY_<<name | upper>>_CONTINUOUS + 1];
  static int discrete[POLICY_<<name | upper>>_DISCRETE + 1];
  const float *const observations[] = {in + <<offsets | join(", in + ")>>};
  const size_t size = <<(sizes.observations | sum) + sizes.mask>> + 2 + POLICY_<<name | upper>>_RANDOM;
  int k;
  if (POLICY_<<name | upper>>_SENSORS != <<sizes.observations | length>>
      || POLICY_<<name | upper>>_CONTINUOUS != <<sizes.continuous>> || POLICY_<<name | upper>>_DISCRETE != <<sizes.discrete>>
      || POLICY_<<name | upper>>_MASK != <<sizes.mask>> || POLICY_<<name | upper>>_MEMORY != <<sizes.memory>>) return 9;
  while (fread(in, sizeof(float), size, stdin) == size) {
    const float *mask = in + <<sizes.observations | sum>>, *rest = mask + <<sizes.mask>>;
    if (rest[0] != 0.0f) memset(memory, 0, sizeof(memory));
    policy_<<name>>_decide(&workspace, 1, observations, <<"mask" if sizes.mask else "NULL">>, memory, rest + 2,
                         rest[1] != 0.0f, continuous, discrete);
    fwrite(continuous, sizeof(float), <<sizes.continuous>>, stdout);
    for (k = 0; k < <<sizes.discrete>>; k++) {
      float value = (float)discrete[k];
      fwrite(&value, sizeof(float), 1, stdout);
    }
  }
  return 0;
}
