#if UNITY_5_3_OR_NEWER
/// <summary>
/// Makes an ML-Agents agent act with this policy if its Behavior Type is Heuristic Only. It only sees the observations
/// of CollectObservations, not those of other sensors.
/// </summary>
public sealed class <<name>>Heuristic : UnityEngine.MonoBehaviour
{
    /// <summary>Take the most likely action instead of sampling one.</summary>
    public bool Deterministic;

    /// <summary>
    /// For each discrete action, branch by branch: 1 allows it, 0 forbids it. Heuristic does not get the mask of
    /// WriteDiscreteActionMask, so also set it here. Null allows all actions.
    /// </summary>
    public float[] Mask;

    readonly <<name>> policy = new <<name>>();
    readonly float[][] observations = { new float[<<name>>.ObservationSizes[0]] };
    readonly float[] memory = new float[<<name>>.MemorySize];
    readonly float[] random = new float[<<name>>.RandomSize];

    /// <summary>Call this in OnEpisodeBegin.</summary>
    public void BeginEpisode()
    {
        Array.Clear(memory, 0, memory.Length);
    }

    /// <summary>Call this in Heuristic.</summary>
    public void Fill(Unity.MLAgents.Agent agent, Unity.MLAgents.Actuators.ActionBuffers actions)
    {
        var seen = agent.<<source>>();
        if (seen.Count != observations[0].Length)
            throw new InvalidOperationException(
                "The policy sees " + observations[0].Length + " numbers, not " + seen.Count);
        for (int i = 0; i < seen.Count; i++) observations[0][i] = seen[i];
        for (int i = 0; i < random.Length; i++) random[i] = UnityEngine.Random.value;
        policy.Decide(1, observations, Mask, memory, random, Deterministic);
        var continuous = actions.ContinuousActions;
        for (int i = 0; i < policy.Continuous.Length; i++) continuous[i] = policy.Continuous[i];
        var discrete = actions.DiscreteActions;
        for (int i = 0; i < policy.Discrete.Length; i++) discrete[i] = policy.Discrete[i];
    }
}
#endif
